"""Language models of Hugging Face's transformers, built from a config without a download, for the text task."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pufferfish_bench.models.torchvision_import  # noqa: F401  (transformers may import torchvision, which needs this first)
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.extras import missing_package
from pufferfish_bench.base.ranges import Count, Share
from pufferfish_bench.models.masking import Masking

FIND_PACKED = "find_packed_sequence_indices"  # of transformers.masking_utils
# no number of ours is a special word: with BERT's default, word 0 would be padding, whose embedding is never trained
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")


class LanguageModel(nn.Module):
    """Maps words to logits. It has no hidden state: every segment starts afresh."""

    def __init__(self, net: nn.Module, masking: Masking | None = None):
        super().__init__()
        self.net = net
        self.masking = masking

    def forward(self, words: Tensor, states: Any = None, following: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        """For words (time, batch): logits (time, batch, vocabulary), and no states.

        If `following` holds the words to predict, returns the cross-entropy of each (time * batch) instead of the logits;
        where it is negative there is nothing to predict, and the loss is 0.
        """
        with never_packed():
            logits = self.net(input_ids=words.t()).logits.transpose(0, 1)
        if following is None:
            return logits, ()
        targets = following.flatten()
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.clamp(min=-1), reduction="none", ignore_index=-1)
        return losses, ()


@contextmanager
def never_packed() -> Iterator[None]:
    """Tell transformers that no row has several texts, as is true here.

    It would find that out from the values of the positions, for which the host waits at every step on a GPU. torch.compile
    traces no such question.
    """
    from transformers import masking_utils

    asked = getattr(masking_utils, FIND_PACKED, None)
    if asked is None or torch.compiler.is_compiling():
        yield
        return
    setattr(masking_utils, FIND_PACKED, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masking_utils, FIND_PACKED, asked)


def decoder(
    *,
    vocabulary: Count,
    model_type: str,
    width: Count,
    layers: Count,
    heads: Count,
    positions: Count,
    config: Mapping[str, Any] | None = None,
) -> LanguageModel:
    """A causal model such as GPT-2, which predicts the next word."""
    settings = sizes(vocabulary, width, layers, heads, positions) | {"use_cache": False}
    return LanguageModel(built("AutoModelForCausalLM", model_type, settings, config or {}))


def encoder(
    *,
    vocabulary: Count,
    model_type: str,
    width: Count,
    layers: Count,
    heads: Count,
    positions: Count,
    mask_share: Share = 0.15,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
) -> LanguageModel:
    """A bidirectional model such as BERT, which restores masked words. The number after the last word is the mask."""
    if not 0 < mask_share < 1:
        raise InputError(f"model.net.mask_share={mask_share} must be above 0 and below 1")
    settings = sizes(vocabulary + 1, width, layers, heads, positions)
    net = built("AutoModelForMaskedLM", model_type, settings, config or {})
    return LanguageModel(net, Masking(share=mask_share, word=vocabulary, seed=seed))


def sizes(vocabulary: int, width: int, layers: int, heads: int, positions: int) -> dict[str, Any]:
    """The sizes under the names of transformers; a config that does not have one of them keeps its own value."""
    if width % heads:
        raise InputError(f"model.net.width={width} must be a multiple of model.net.heads={heads}")
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": positions,
        "intermediate_size": 4 * width,  # the usual width of the feed-forward layers
    }


def built(factory: str, model_type: str, settings: Mapping[str, Any], further: Mapping[str, Any]) -> nn.Module:
    """The model that a factory of transformers builds from the config of an architecture, with random weights."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise missing_package("transformers", "a model of Hugging Face") from None
    if model_type not in transformers.CONFIG_MAPPING:
        raise InputError(f"model.net.model_type={model_type} is not known to transformers {transformers.__version__}")
    default = transformers.AutoConfig.for_model(model_type)
    for key in further:
        if not hasattr(default, key):  # transformers would accept any name and ignore it
            raise InputError(f"there is no setting model.net.config.{key} for model_type={model_type}")
    # a setting of the user's takes the place of the same one under its general name: n_embd that of hidden_size
    names = {name: default.attribute_map.get(name, name) for name in settings}
    ours = {name: value for name, value in settings.items() if hasattr(default, name) and names[name] not in further}
    special = {name: None for name in SPECIAL if hasattr(default, name)}
    config = transformers.AutoConfig.for_model(model_type, **{**special, **ours, **further})
    auto = getattr(transformers, factory)
    if type(config) not in auto._model_mapping:
        kind = "decoder" if factory == "AutoModelForCausalLM" else "encoder"
        raise InputError(f"model.net.model_type={model_type} is not a {kind} in transformers: choose another architecture")
    return auto.from_config(config)
