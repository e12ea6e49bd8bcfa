"""Beam search, compared with plain searches without batches and without a cache."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.models.transformer import Transformer
from pufferfish_bench.tasks.translation import beam_search

PADDING, START, END = 0, 1, 2
FRAME = {"start": START, "end": END}
Scored = tuple[float, list[int]]


def tiny(seed: int, *, vocabulary: int = 6) -> Transformer:
    """A model in double precision, so that there are no ties, whose probabilities are far from uniform."""
    torch.manual_seed(seed)
    model = Transformer(
        vocabulary=vocabulary, width=8, heads=2, inner=8, layers=1, dropout=0.1, positions=12, padding=PADDING, gain=1.0
    )
    with torch.no_grad():
        model.embedding.weight.mul_(3)
    return model.double().eval()


def sentences(seed: int, lengths: list[int], *, vocabulary: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocabulary, (length,), generator=generator) for length in lengths]


def next_words(model: Transformer, source: Tensor, words: list[int]) -> list[float]:
    """The log-probability of every word after these, by the whole forward pass."""
    with torch.no_grad():
        return model(source[None], torch.tensor([[START, *words]]))[0, -1].log_softmax(-1).tolist()


def all_hypotheses(
    model: Transformer, source: Tensor, longest: int, alpha: float, words: list[int], so_far: float
) -> list[Scored]:
    """All hypotheses that end within `longest` words, with their scores."""
    found = []
    for word, log_probability in enumerate(next_words(model, source, words)):
        total = so_far + log_probability
        if word == END:
            found.append((total / (len(words) + 1) ** alpha, words))
        elif len(words) + 1 < longest:
            found += all_hypotheses(model, source, longest, alpha, [*words, word], total)
    return found


def plain_search(model: Transformer, source: Tensor, beam: int, alpha: float, longest: int) -> list[int]:
    """The documented search for one sentence, in lists."""
    running: list[Scored] = [(0.0, [])]
    finished: list[Scored] = []
    for length in range(1, longest + 1):
        continued = [
            (so_far + log_probability, [*words, word])
            for so_far, words in running
            for word, log_probability in enumerate(next_words(model, source, words))
        ]
        continued.sort(reverse=True)
        finished += [(score / length**alpha, words[:-1]) for score, words in continued[:beam] if words[-1] == END]
        running = [hypothesis for hypothesis in continued if hypothesis[1][-1] != END][:beam]
        if len(finished) >= beam:
            break
    return max(finished)[1] if finished else running[0][1]


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("longest", [1, 2, 4])
def test_a_beam_that_holds_all_hypotheses_finds_the_best_one(alpha: float, longest: int):
    found_lengths = set()
    for seed in range(3):
        model, source = tiny(seed, vocabulary=4), sentences(seed, [5, 3], vocabulary=4)
        found = beam_search.translate(
            model, source, padding=PADDING, **FRAME, beam=4**longest, alpha=alpha, longest=longest, batch_size=2
        )
        for sentence, words in zip(source, found, strict=True):
            assert words == max(all_hypotheses(model, sentence, longest, alpha, [], 0.0))[1]
            found_lengths.add(len(words))
    assert longest < 4 or len(found_lengths) > 1  # not only the shortest, nor only the longest


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_beam_of_one_is_greedy_search(alpha: float):
    for seed in range(8):
        model, (source,) = tiny(seed), sentences(seed, [4])
        words: list[int] = []
        while len(words) < 7 and (not words or words[-1] != END):
            scores = next_words(model, source, words)
            words.append(scores.index(max(scores)))
        greedy = words[:-1] if words[-1] == END else words
        assert beam_search.beam_search(model, source[None], **FRAME, beam=1, alpha=alpha, longest=7) == [greedy]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 999),
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    beam=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.7, 1.5]),
    batch_size=st.integers(1, 5),
)
def test_a_sentence_in_a_batch_is_translated_as_by_a_plain_search(
    seed: int, lengths: list[int], beam: int, alpha: float, batch_size: int
):
    model, sources = tiny(seed), sentences(seed, lengths)
    rule = {"beam": beam, "alpha": alpha, "longest": 6}
    together = beam_search.translate(model, sources, padding=PADDING, **FRAME, **rule, batch_size=batch_size)
    assert together == [beam_search.beam_search(model, source[None], **FRAME, **rule)[0] for source in sources]
    assert together == [plain_search(model, source, **rule) for source in sources]


def test_the_search_stops_where_the_plain_search_stops():
    rule = {"beam": 3, "alpha": 1.5, "longest": 6}  # a strong reward for length: to search on would often find another
    for seed in range(40):
        model, sources = tiny(seed), sentences(seed, [3, 5, 2])
        found = beam_search.translate(model, sources, padding=PADDING, **FRAME, **rule, batch_size=3)
        assert found == [plain_search(model, source, **rule) for source in sources]


@dataclass
class Copied:
    """The rows of a source, or the number of words copied so far."""

    rows: Tensor

    def select(self, rows: Tensor) -> "Copied":
        return Copied(self.rows[rows])


class Copyist(torch.nn.Linear):
    """Predicts the source and then the end with high probability, and records the number of rows of each step."""

    def __init__(self, vocabulary: int):
        super().__init__(1, 1)  # a parameter, as a net has
        self.vocabulary = vocabulary
        self.asked: list[int] = []

    def encode(self, source: Tensor) -> Copied:
        return Copied(torch.nn.functional.pad(source, (0, 1), value=PADDING))

    def step(self, words: Tensor, memory: Copied, past: Copied | None) -> tuple[Tensor, Copied]:
        self.asked.append(len(words))
        place = past.rows if past else torch.zeros_like(words)
        sources = memory.rows.repeat_interleave(len(words) // len(memory.rows), 0)
        word = sources[torch.arange(len(words)), place.clamp(max=sources.shape[1] - 1)]
        word = word.masked_fill(word == PADDING, END)
        return 10.0 * torch.nn.functional.one_hot(word, self.vocabulary), Copied(place + 1)


def copied(model: Copyist, sources: list[Tensor], **rule: int) -> list[list[int]]:
    return beam_search.translate(model, sources, padding=PADDING, **FRAME, **{"alpha": 0.7, "longest": 9, "batch_size": 9} | rule)


def copyable(lengths: list[int]) -> list[Tensor]:
    return [3 + torch.arange(length) + number for number, length in enumerate(lengths)]


@pytest.mark.parametrize("batch_size", [1, 2, 9])
@pytest.mark.parametrize("beam", [1, 3])
def test_translations_come_in_the_order_of_the_sources(beam: int, batch_size: int):
    sources = copyable([4, 1, 7, 2, 2, 5])
    assert copied(Copyist(20), sources, beam=beam, batch_size=batch_size) == [source.tolist() for source in sources]
    assert copied(Copyist(20), [], beam=beam) == []


def test_a_finished_sentence_costs_no_more_steps():
    model = Copyist(20)
    copied(model, copyable([4, 1, 7, 2]), beam=1)
    assert model.asked == [4, 4, 3, 2, 2, 1, 1, 1]  # a sentence of n words is asked n + 1 times
    model = Copyist(20)
    copied(model, copyable([4, 1, 7, 2]), beam=3)
    assert model.asked[0] == 4
    assert model.asked[1:] == [3 * rows for rows in (4, 3, 2, 2, 1, 1, 1)]  # nothing else can still be as probable


def test_a_translation_without_an_end_is_cut():
    assert copied(Copyist(20), copyable([8, 3]), beam=1, longest=5) == [[3, 4, 5, 6, 7], [4, 5, 6]]


def test_a_vocabulary_may_be_smaller_than_the_beam():
    assert copied(Copyist(4), [torch.tensor([3, 3, 3])], beam=50) == [[3, 3, 3]]


def test_translating_restores_the_training_mode_of_every_module_even_after_an_error():
    model = tiny(0).train()
    model.decoder[0].eval()
    before = [module.training for module in model.modules()]
    rule = {"padding": PADDING, **FRAME, "beam": 2, "alpha": 0.7, "batch_size": 2}
    first, second = (beam_search.translate(model, sentences(0, [3, 4]), **rule, longest=5) for _ in range(2))
    assert first == second  # no dropout
    with pytest.raises(InputError, match="positions=12"):
        beam_search.translate(model, sentences(0, [13]), **rule, longest=5)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("wrong", [{"beam": 0}, {"alpha": -1.0}, {"longest": 0}])
def test_invalid_search_settings_are_refused(wrong: dict[str, float]):
    with pytest.raises(InputError, match="must be at least 1"):
        beam_search.beam_search(tiny(0), torch.tensor([[3]]), **FRAME, **{"beam": 2, "alpha": 0.7, "longest": 5} | wrong)
