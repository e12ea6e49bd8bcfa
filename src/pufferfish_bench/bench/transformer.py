"""A training step of the Transformer on sentence pairs of one length, hybrid against vanilla, both exactly as a run has them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pufferfish_bench.bench import as_in_a_run, interleaved, profiled
from pufferfish_bench.bench.row import Row, compare

QUICK = {"rounds": 2, "pairs": 16}
FIRST_WORD = 4  # smaller numbers are special: padding, start, end, unknown


def cross_entropy(source: Tensor, target: Tensor, model: Callable[..., Tensor]) -> Tensor:
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)


def measure(
    *, rounds: int = 7, pairs: int = 64, tokens: int = 30, width: int = 512, vocabulary: int | None = None
) -> tuple[list[Row], dict[str, Any]]:
    """`tokens` per sentence; `vocabulary` None is that of Multi30k."""
    torch.manual_seed(1)
    sizes = [f"model.net.width={width}", f"model.net.inner={4 * width}"]
    words = [] if vocabulary is None else [f"dataset.vocabulary={vocabulary}"]
    nets = as_in_a_run.nets("model=transformer", *sizes, *words)
    numbers = partial(torch.randint, FIRST_WORD, nets.settings["net"]["vocabulary"])
    source, target = numbers((pairs, tokens)), numbers((pairs, tokens + 1))
    loss = partial(cross_entropy, source, target)
    work = {name: as_in_a_run.stepper(model, nets.optimizer, loss) for name, model in nets.named().items()}
    taken = interleaved.seconds(work, rounds=rounds)
    profile = {name: profiled.shares(step) for name, step in work.items()}
    sample = source[:1], target[:1, :-1]
    note = f"{pairs} pairs of {tokens} tokens. {profiled.sentence('the hybrid step', profile['hybrid'])}"
    sides = ("hybrid", taken["hybrid"]), ("our vanilla", taken["vanilla"])
    row = compare("transformer", *sides, limit=nets.macs_ratio(*sample), note=note)
    return [row], {"seconds": taken, "profile": profile, "macs": nets.macs(*sample)}
