"""Search for the most probable translations; knows of a model only that it encodes a source and takes one word at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pufferfish_bench.errors import InputError

NEVER = float("-inf")


class Model(Protocol):
    """A net that translates. Its memory and past have `select(rows)`; each row of the memory serves equally many words."""

    def encode(self, source: Tensor) -> Any: ...

    def step(self, words: Tensor, memory: Any, past: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Beams:
    """The sentences still being translated: the running hypotheses of each, best first, and its best finished one."""

    sentences: Tensor  # (n,): which of the batch they are
    words: Tensor  # (n, k, t): what the running hypotheses say
    scores: Tensor  # (n, k): their log-probabilities; of those that only fill a gap, minus infinity
    finished: Tensor  # (n,): how many have come to an end
    best: Tensor  # (n, longest): the words of the best finished one, and the end from there on
    best_score: Tensor  # (n,): its log-probability / length**alpha

    def select(self, rows: Tensor) -> "Beams":
        """The beams of these sentences, in this order."""
        return Beams(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))


def beam_search(model: Model, source: Tensor, *, start: int, end: int, beam: int, alpha: float, longest: int) -> list[list[int]]:
    """The best translation found of every sentence of source (batch, S), without `start` and `end`.

    At each step the `beam` best of all continuations are looked at: those that end are finished, and as many others run on.
    A finished hypothesis scores log-probability / length**alpha, its end counted in both. A sentence is left when it has
    `beam` finished hypotheses, when none that runs can still beat the best of them, or after `longest` words, the end
    counted; only if nothing has finished by then, the most probable running hypothesis is taken as it stands.
    """
    if beam < 1 or longest < 1 or alpha < 0:
        raise InputError(f"beam={beam} and longest={longest} must be at least 1, and alpha={alpha} not below 0")
    translations: dict[int, list[int]] = {}
    beams, memory, past = beginning(source, end=end, longest=longest), model.encode(source), None
    words = source.new_full((len(source),), start)
    while len(beams.sentences):
        logits, past = model.step(words, memory, past)
        beams, parents = extended(beams, logits, end=end, beam=beam, alpha=alpha)
        hopeless = beams.best_score >= beams.scores[:, 0] / longest**alpha  # scores only fall, and this is the mildest divisor
        done = (beams.finished >= beam) | hopeless | (beams.words.shape[2] == longest)
        if done.any():
            translations |= concluded(beams.select(done.nonzero()[:, 0]), end=end)
            going = done.logical_not().nonzero()[:, 0]
            beams, memory, parents = beams.select(going), memory.select(going), parents.index_select(0, going)
        past, words = past.select(parents.flatten()), beams.words[:, :, -1].flatten()
    return [translations[sentence] for sentence in range(len(source))]


def beginning(source: Tensor, *, end: int, longest: int) -> Beams:
    """One running hypothesis for each sentence, which says nothing yet."""
    sentences = len(source)
    return Beams(
        sentences=torch.arange(sentences, device=source.device),
        words=source.new_empty((sentences, 1, 0)),
        scores=torch.zeros(sentences, 1, device=source.device),
        finished=source.new_zeros(sentences),
        best=source.new_full((sentences, longest), end),
        best_score=torch.full((sentences,), NEVER, device=source.device),
    )


def extended(beams: Beams, logits: Tensor, *, end: int, beam: int, alpha: float) -> tuple[Beams, Tensor]:
    """The beams one word on, and for each running hypothesis (n, k) the row of the logits that it continues."""
    sentences, running, length = beams.words.shape
    precise = torch.promote_types(logits.dtype, torch.float32)
    continued = beams.scores[:, :, None] + logits.log_softmax(-1, dtype=precise).view(sentences, running, -1)
    vocabulary = continued.shape[2]
    # each hypothesis has one end: of twice as many candidates at most half are ends, and `beam` others remain
    candidates, places = continued.flatten(1).topk(min(2 * beam, running * vocabulary))
    parents, last = places // vocabulary, places % vocabulary
    ends = last == end
    rows = torch.arange(sentences, device=logits.device)

    finishing = candidates.masked_fill(~ends, NEVER)[:, :beam]
    score, which = (finishing / (length + 1) ** alpha).max(1)
    better = score > beams.best_score
    best = beams.best.clone()  # whatever finishes now is longer than all that finished before, and overwrites it
    best[:, :length] = torch.where(better[:, None], beams.words[rows, parents[rows, which]], best[:, :length])

    scores, chosen = candidates.masked_fill(ends, NEVER).topk(min(beam, candidates.shape[1]))
    parents, last = parents.gather(1, chosen), last.gather(1, chosen)
    onward = Beams(
        sentences=beams.sentences,
        words=torch.cat((beams.words[rows[:, None], parents], last[:, :, None]), dim=2),
        scores=scores,
        finished=beams.finished + (finishing > NEVER).sum(1),
        best=best,
        best_score=torch.where(better, score, beams.best_score),
    )
    return onward, rows[:, None] * running + parents


def concluded(beams: Beams, *, end: int) -> dict[int, list[int]]:
    """For each sentence, by its number in the batch, the best finished hypothesis; if there is none, the best running one."""
    cut = nn.functional.pad(beams.words[:, 0], (0, beams.best.shape[1] - beams.words.shape[2]), value=end)
    best = torch.where((beams.best_score == NEVER)[:, None], cut, beams.best)
    found = zip(beams.sentences.tolist(), best.tolist(), strict=True)
    return {sentence: words[: words.index(end)] if end in words else words for sentence, words in found}


def translate(
    model: nn.Module,
    sources: Sequence[Tensor],
    *,
    padding: int,
    start: int,
    end: int,
    beam: int,
    alpha: float,
    longest: int,
    batch_size: int,
) -> list[list[int]]:
    """The translations of all sources in their order, sentences of like length together; the model's mode stays as it was."""
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    device = next(model.parameters()).device
    training = {module: module.training for module in model.modules()}
    model.eval()
    translations: dict[int, list[int]] = {}
    try:
        with torch.inference_mode():
            for first in range(0, len(order), batch_size):
                numbers = order[first : first + batch_size]
                batch = pad_sequence([sources[number] for number in numbers], batch_first=True, padding_value=padding)
                found = beam_search(model, batch.to(device), start=start, end=end, beam=beam, alpha=alpha, longest=longest)
                translations |= zip(numbers, found, strict=True)
    finally:
        for module, mode in training.items():
            module.training = mode
    return [translations[number] for number in range(len(sources))]
