"""Batched beam search for any model that encodes a source sentence and decodes one word at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pufferfish_bench.base.errors import InputError

NEVER = float("-inf")
MOST_ALPHA = 10  # larger exponents of the length overflow


class Model(Protocol):
    """A translation model. Its memory and past have `select(rows)`; each row of memory belongs to equally many rows of words."""

    def encode(self, source: Tensor) -> Any: ...

    def step(self, words: Tensor, memory: Any, past: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Beams:
    """The unfinished sentences: the running hypotheses of each, best first, and its best finished hypothesis."""

    sentences: Tensor  # (n,): their indices in the batch
    words: Tensor  # (n, k, t): the words of the running hypotheses
    scores: Tensor  # (n, k): their log-probabilities; minus infinity for padding
    finished: Tensor  # (n,): number of finished hypotheses
    best: Tensor  # (n, longest): the words of the best finished hypothesis, padded with `end`
    best_score: Tensor  # (n,): its log-probability / length**alpha

    def select(self, rows: Tensor) -> "Beams":
        """The beams of these sentences, in this order."""
        return Beams(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))


def beam_search(model: Model, source: Tensor, *, start: int, end: int, beam: int, alpha: float, longest: int) -> list[list[int]]:
    """The best translation found for each sentence of source (batch, S), without `start` and `end`.

    Each step considers the `beam` best continuations: those that end with `end` are finished, and the `beam` best others
    continue. A finished hypothesis scores log-probability / length**alpha, `end` included in both. The search for a sentence
    stops when it has `beam` finished hypotheses, when no running one can still beat the best of them, or after `longest` words
    including `end`. If none has finished by then, the most probable running hypothesis is returned.
    """
    if beam < 1 or longest < 1 or not 0 <= alpha <= MOST_ALPHA:
        raise InputError(f"beam={beam} and longest={longest} must be at least 1, and alpha={alpha} from 0 to {MOST_ALPHA}")
    translations: dict[int, list[int]] = {}
    beams, memory, past = initial_beams(source, end=end, longest=longest), model.encode(source), None
    words = source.new_full((len(source),), start)
    while len(beams.sentences):
        logits, past = model.step(words, memory, past)
        beams, parents = extend(beams, logits, end=end, beam=beam, alpha=alpha)
        unbeatable = beams.best_score >= beams.scores[:, 0] / longest**alpha  # scores only fall, and no divisor is larger
        done = (beams.finished >= beam) | unbeatable | (beams.words.shape[2] == longest)
        if done.any():
            translations |= best_translations(beams.select(done.nonzero()[:, 0]), end=end)
            going = done.logical_not().nonzero()[:, 0]
            beams, memory, parents = beams.select(going), memory.select(going), parents.index_select(0, going)
        past, words = past.select(parents.flatten()), beams.words[:, :, -1].flatten()
    return [translations[sentence] for sentence in range(len(source))]


def initial_beams(source: Tensor, *, end: int, longest: int) -> Beams:
    """One empty running hypothesis for each sentence."""
    sentences = len(source)
    return Beams(
        sentences=torch.arange(sentences, device=source.device),
        words=source.new_empty((sentences, 1, 0)),
        scores=torch.zeros(sentences, 1, device=source.device),
        finished=source.new_zeros(sentences),
        best=source.new_full((sentences, longest), end),
        best_score=torch.full((sentences,), NEVER, device=source.device),
    )


def extend(beams: Beams, logits: Tensor, *, end: int, beam: int, alpha: float) -> tuple[Beams, Tensor]:
    """The beams extended by one word, and for each running hypothesis (n, k) the row of the logits that it continues."""
    sentences, running, length = beams.words.shape
    precise = torch.promote_types(logits.dtype, torch.float32)
    continued = beams.scores[:, :, None] + logits.log_softmax(-1, dtype=precise).view(sentences, running, -1)
    vocabulary = continued.shape[2]
    # each hypothesis has one continuation by `end`: at most half of 2 * beam candidates end, so `beam` others remain
    candidates, places = continued.flatten(1).topk(min(2 * beam, running * vocabulary))
    parents, last = places // vocabulary, places % vocabulary
    ends = last == end
    rows = torch.arange(sentences, device=logits.device)

    finishing = candidates.masked_fill(~ends, NEVER)[:, :beam]
    score, which = (finishing / (length + 1) ** alpha).max(1)
    better = score > beams.best_score
    best = beams.best.clone()  # what finishes now is longer than all that finished before, so it overwrites all of it
    best[:, :length] = torch.where(better[:, None], beams.words[rows, parents[rows, which]], best[:, :length])

    scores, chosen = candidates.masked_fill(ends, NEVER).topk(min(beam, candidates.shape[1]))
    parents, last = parents.gather(1, chosen), last.gather(1, chosen)
    longer = Beams(
        sentences=beams.sentences,
        words=torch.cat((beams.words[rows[:, None], parents], last[:, :, None]), dim=2),
        scores=scores,
        finished=beams.finished + (finishing > NEVER).sum(1),
        best=best,
        best_score=torch.where(better, score, beams.best_score),
    )
    return longer, rows[:, None] * running + parents


def best_translations(beams: Beams, *, end: int) -> dict[int, list[int]]:
    """The best finished hypothesis of each sentence, by its index in the batch; the best running one if none has finished."""
    running = nn.functional.pad(beams.words[:, 0], (0, beams.best.shape[1] - beams.words.shape[2]), value=end)
    best = torch.where((beams.best_score == NEVER)[:, None], running, beams.best)
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
    """Translations of all sources, in their order, batched by similar length. Restores the training mode of every module."""
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
