"""The paper's Transformer: post-norm, one embedding for source, target and output. Independent of factorisation and search."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, Decay, Natural, Positive

KeysAndValues = tuple[Tensor, Tensor]  # each (rows, heads, positions, width / heads)


@dataclass(frozen=True)
class Past:
    """Cache of the tokens so far: keys and values of the self-attention of every decoder layer."""

    layers: list[KeysAndValues]

    @property
    def length(self) -> int:
        """The number of words so far."""
        return self.layers[0][0].shape[2]

    def select(self, rows: Tensor) -> "Past":
        """The cache of these rows, in this order; a row may occur more than once."""
        return Past([(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in self.layers])


@dataclass(frozen=True)
class Memory:
    """An encoded source: keys and values for every decoder layer, and a mask of its padding."""

    layers: list[KeysAndValues]
    mask: Tensor  # (rows, 1, 1, positions): True where there is a word

    def select(self, rows: Tensor) -> "Memory":
        """The memory of these rows, in this order; a row may occur more than once."""
        layers = [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in self.layers]
        return Memory(layers, self.mask.index_select(0, rows))


class Attention(nn.Module):
    """Multi-head scaled dot-product attention; four projections without bias."""

    def __init__(self, *, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        """(rows, positions, width) as (rows, heads, positions, width / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys_and_values(self, x: Tensor) -> KeysAndValues:
        """Keys and values of x (rows, positions, width)."""
        return self.split(self.key(x)), self.split(self.value(x))

    def forward(self, x: Tensor, found: KeysAndValues, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        dropout = self.drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            self.split(self.query(x)), *found, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
        return self.drop(self.out(mixed.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU in between, applied to each position."""

    def __init__(self, *, width: int, inner: int, dropout: float):
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.outer(self.inner(x).relu()))


def norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-6)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each with a shortcut and followed by a norm."""

    def __init__(self, *, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.attention = Attention(width=width, heads=heads, dropout=dropout)
        self.attention_norm = norm(width)
        self.feed_forward = FeedForward(width=width, inner=inner, dropout=dropout)
        self.feed_forward_norm = norm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, self.attention.keys_and_values(x), mask=mask))
        return self.feed_forward_norm(x + self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the source, then feed-forward, each with a shortcut and followed by a norm."""

    def __init__(self, *, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.self_attention = Attention(width=width, heads=heads, dropout=dropout)
        self.self_attention_norm = norm(width)
        self.cross_attention = Attention(width=width, heads=heads, dropout=dropout)
        self.cross_attention_norm = norm(width)
        self.feed_forward = FeedForward(width=width, inner=inner, dropout=dropout)
        self.feed_forward_norm = norm(width)

    def forward(self, x: Tensor, source: KeysAndValues, mask: Tensor, past: KeysAndValues | None) -> tuple[Tensor, KeysAndValues]:
        """The layer's output for x (rows, positions, width), and the cache with x added; with a cache, x must be one position."""
        found = self.self_attention.keys_and_values(x)
        if past is not None:
            found = torch.cat((past[0], found[0]), dim=2), torch.cat((past[1], found[1]), dim=2)
        x = self.self_attention_norm(x + self.self_attention(x, found, causal=past is None))
        beside = x.reshape(
            len(mask), -1, x.shape[-1]
        )  # rows that share a source attend to it in one batch row, without copies of it
        x = self.cross_attention_norm(x + self.cross_attention(beside, source, mask=mask).view_as(x))
        return self.feed_forward_norm(x + self.feed_forward(x)), found


class Transformer(nn.Module):
    """Maps source words and the target words so far to logits of the next target words."""

    positions: Tensor

    def __init__(
        self, *, vocabulary: Count, width: Count, heads: Count, inner: Count, layers: Count, dropout: Decay, positions: Count,
        padding: Natural, gain: Positive,
    ):  # fmt: skip
        super().__init__()
        if width % heads:
            raise InputError(f"model.net.width={width} must be a multiple of model.net.heads={heads}")
        self.padding = padding
        self.gain = gain
        self.embedding = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", sinusoids(positions, width), persistent=False)
        self.drop = nn.Dropout(dropout)
        sizes: dict[str, Any] = {"width": width, "heads": heads, "inner": inner, "dropout": dropout}
        self.encoder_norm = norm(width)
        self.encoder = nn.ModuleList(EncoderLayer(**sizes) for _ in range(layers))
        self.decoder_norm = norm(width)
        self.decoder = nn.ModuleList(DecoderLayer(**sizes) for _ in range(layers))
        self.apply(self.initialise)

    def initialise(self, layer: nn.Module) -> None:
        """Xavier for the embedding, and times `gain` for matrices and their factors; PyTorch's default for biases."""
        if isinstance(layer, nn.Embedding):
            nn.init.xavier_uniform_(layer.weight)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, self.gain)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """For source (batch, S) and target (batch, T): logits (batch, T, vocabulary) of the word after each target word."""
        return self.decode(target, self.encode(source), None)[0]

    def encode(self, source: Tensor) -> Memory:
        """The memory of source (batch, S) for decoding; padding is masked."""
        mask = (source != self.padding)[:, None, None]
        x = self.encoder_norm(self.placed(source, first=0))
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory([layer.cross_attention.keys_and_values(x) for layer in self.decoder], mask)

    def step(self, words: Tensor, memory: Memory, past: Past | None) -> tuple[Tensor, Past]:
        """For one more word in each row: logits (rows, vocabulary) of the next word, and the cache with these words added.

        If the memory has fewer rows than `words`, each of its rows serves the same number of consecutive rows of words.
        """
        logits, past = self.decode(words[:, None], memory, past)
        return logits[:, 0], past

    def decode(self, words: Tensor, memory: Memory, past: Past | None) -> tuple[Tensor, Past]:
        """As `step`, for words (rows, T); with a cache, T must be 1."""
        x = self.decoder_norm(self.placed(words, first=past.length if past else 0))
        layers = []
        for number, layer in enumerate(self.decoder):
            x, found = layer(x, memory.layers[number], memory.mask, past.layers[number] if past else None)
            layers.append(found)
        return F.linear(x, self.embedding.weight) * x.shape[-1] ** -0.5, Past(layers)

    def placed(self, words: Tensor, *, first: int) -> Tensor:
        """Embeddings of words (rows, T) plus positional encodings that start at position `first`; embeddings are not scaled."""
        end = first + words.shape[1]
        if end > len(self.positions):
            raise InputError(
                f"a sentence of {end} words is longer than model.net.positions={len(self.positions)}: shorten it or increase that"
            )
        return self.drop(self.embedding(words) + self.positions[first:end])


def sinusoids(positions: int, width: int) -> Tensor:
    """A table (positions, width): alternating sines and cosines, with wavelengths from 2 pi to 10,000 times that."""
    frequencies = 10_000 ** (-torch.arange(0, width, 2, dtype=torch.double) / width)
    angles = torch.arange(positions, dtype=torch.double)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width].float()
