"""nn.MultiheadAttention with low-rank projections: those of queries, keys, values and outputs are factorised separately."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank.kind import Kind, argument, copy_bias
from pufferfish_bench.lowrank.layers import low_rank_linear

INPUTS = ("q", "k", "v")


class LowRankAttention(nn.Module):
    """Takes the arguments of nn.MultiheadAttention and computes the same with four low-rank projections."""

    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None
    merge_masks = nn.MultiheadAttention.merge_masks  # nn.TransformerEncoderLayer calls it

    def __init__(
        self, embed_dim: int, num_heads: int, rank: int, *, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False, **like: Any,
    ):  # fmt: skip
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self.q_proj = low_rank_linear(embed_dim, embed_dim, rank, bias=bias, **like)
        self.k_proj = low_rank_linear(self.kdim, embed_dim, rank, bias=bias, **like)
        self.v_proj = low_rank_linear(self.vdim, embed_dim, rank, bias=bias, **like)
        self.out_proj = low_rank_linear(embed_dim, embed_dim, rank, bias=bias, **like)
        self.bias_k = nn.Parameter(torch.randn(1, 1, embed_dim, **like) / embed_dim**0.5) if add_bias_kv else None
        self.bias_v = nn.Parameter(torch.randn(1, 1, embed_dim, **like) / embed_dim**0.5) if add_bias_kv else None
        for bias_of in (self.q_proj.bias, self.k_proj.bias, self.v_proj.bias, self.out_proj.bias):
            if bias_of is not None:
                nn.init.zeros_(bias_of)

    @property
    def in_proj_weight(self) -> Tensor | None:
        """The dense weight of queries, keys and values, for modules that read it: nn.TransformerEncoderLayer in evaluation."""
        return torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]) if self._qkv_same_embed_dim else None

    @property
    def q_proj_weight(self) -> Tensor | None:
        return None if self._qkv_same_embed_dim else self.q_proj.weight

    @property
    def k_proj_weight(self) -> Tensor | None:
        return None if self._qkv_same_embed_dim else self.k_proj.weight

    @property
    def v_proj_weight(self) -> Tensor | None:
        return None if self._qkv_same_embed_dim else self.v_proj.weight

    @property
    def in_proj_bias(self) -> Tensor | None:
        biases = [bias for bias in (self.q_proj.bias, self.k_proj.bias, self.v_proj.bias) if bias is not None]
        return torch.cat(biases) if biases else None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As nn.MultiheadAttention.forward."""
        if is_causal and attn_mask is None:
            raise InputError("is_causal=True needs attn_mask, as in nn.MultiheadAttention: pass the causal mask too")
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self.heads(query, key, value)
        is_causal = is_causal and key_padding_mask is None and not need_weights  # then attn_mask is not needed
        mask = self.mask(None if is_causal else attn_mask, key_padding_mask, q, k.shape[2] - key.shape[1])
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / self.head_dim)) @ k.transpose(2, 3)
            weights = F.dropout(F.softmax(scores if mask is None else scores + mask, -1), dropout)
            outputs = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        else:
            outputs = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        outputs = self.out_proj(outputs.transpose(1, 2).flatten(2))
        if not batched:
            return outputs[0], weights
        return outputs if self.batch_first else outputs.transpose(0, 1), weights

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head: (batch, heads, length, features)."""
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, row.expand(len(x), 1, -1)], 1) for x, row in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        q, k, v = (x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def mask(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, further: int) -> Tensor | None:
        """Both masks as one that is added to the scores; `further` keys were appended and are never masked."""
        masks = []
        if attn_mask is not None:
            shape = (len(q), self.num_heads) if attn_mask.dim() == 3 else (1, 1)
            masks.append(added(attn_mask, q.dtype).view(*shape, *attn_mask.shape[-2:]))
        if padding is not None:
            masks.append(added(padding, q.dtype)[:, None, None])
        padded = [F.pad(mask, (0, further)) for mask in masks]
        return None if not padded else padded[0] if len(padded) == 1 else padded[0] + padded[1]


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to be added: minus infinity where a Boolean mask is true."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


class AttentionKind(Kind):
    types = (nn.MultiheadAttention,)
    factored = LowRankAttention

    def shape(self, layer: nn.MultiheadAttention) -> tuple[int, int]:
        return layer.embed_dim, min(layer.embed_dim, layer.kdim, layer.vdim)

    def matrices(self, layer: nn.MultiheadAttention) -> dict[str, Tensor]:
        if layer._qkv_same_embed_dim:
            inputs = layer.in_proj_weight.detach().chunk(3)
        else:
            inputs = tuple(getattr(layer, f"{name}_proj_weight").detach() for name in INPUTS)
        return dict(zip(INPUTS, inputs, strict=True)) | {"out": layer.out_proj.weight.detach()}

    def factors(self, factored: LowRankAttention) -> dict[str, tuple[Tensor, Tensor]]:
        parts = {name: factored.get_submodule(f"{name}_proj") for name in (*INPUTS, "out")}
        return {name: (part.get_parameter("u.weight").detach(), part.get_parameter("v.weight").detach())
                for name, part in parts.items()}  # fmt: skip

    def new(self, layer: nn.MultiheadAttention, rank: int, like: dict[str, Any]) -> LowRankAttention:
        return LowRankAttention(rank=rank, **options(layer), **like)

    def empty_dense(self, factored: LowRankAttention, like: dict[str, Any]) -> nn.MultiheadAttention:
        return nn.MultiheadAttention(**options(factored), **like)

    def copy_rest(self, layer: nn.MultiheadAttention, factored: LowRankAttention) -> None:
        if layer.in_proj_bias is not None:
            for name, bias in zip(INPUTS, layer.in_proj_bias.chunk(3), strict=True):
                copy_bias(bias, factored.get_parameter(f"{name}_proj.v.bias"))
        copy_bias(layer.out_proj.bias, factored.out_proj.bias)
        copy_bias(layer.bias_k, factored.bias_k)
        copy_bias(layer.bias_v, factored.bias_v)

    def restore_rest(self, factored: LowRankAttention, layer: nn.MultiheadAttention) -> None:
        copy_bias(factored.in_proj_bias, layer.in_proj_bias)
        copy_bias(factored.out_proj.bias, layer.out_proj.bias)
        copy_bias(factored.bias_k, layer.bias_k)
        copy_bias(factored.bias_v, layer.bias_v)

    def origins(self, layer: nn.MultiheadAttention) -> dict[str, str]:
        fused = layer._qkv_same_embed_dim
        weights = {name: "in_proj_weight" if fused else f"{name}_proj_weight" for name in INPUTS} | {"out": "out_proj.weight"}
        found = {f"{name}_proj.{factor}.weight": origin for name, origin in weights.items() for factor in "uv"}
        if layer.in_proj_bias is not None:
            found |= {f"{name}_proj.v.bias": "in_proj_bias" for name in INPUTS} | {"out_proj.v.bias": "out_proj.bias"}
        return found | ({} if layer.bias_k is None else {"bias_k": "bias_k", "bias_v": "bias_v"})

    def vectors(
        self, layer: nn.MultiheadAttention, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
    ) -> dict[str, int]:
        sides = {"query": layer.embed_dim, "key": layer.kdim, "value": layer.vdim}
        counts = [argument(place, name, args, kwargs).numel() // side for place, (name, side) in enumerate(sides.items())]
        return dict(zip((*INPUTS, "out"), (*counts, counts[0]), strict=True))


def options(layer: Any) -> dict[str, Any]:
    """The constructor's arguments of an attention layer, dense or low-rank."""
    names = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
    return {name: getattr(layer, name) for name in names} | {
        "bias": layer.in_proj_bias is not None, "add_bias_kv": layer.bias_k is not None,
    }  # fmt: skip
