"""The Transformer: a plain implementation with loops is the reference, and decoding step by step matches the full pass."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting
from pufferfish_bench.models.transformer import Attention, DecoderLayer, EncoderLayer, Transformer

PADDING = 1
HYBRID = {"keep": ["encoder.0.*", "decoder.0.*"], "first": None, "rank_ratio": 0.25}


def tiny(*, width: int = 12, heads: int = 3, layers: int = 2, dropout: float = 0.0, seed: int = 0) -> Transformer:
    """A net in double precision and without symmetries: biases and norms are random too."""
    torch.manual_seed(seed)
    model = Transformer(
        vocabulary=11, width=width, heads=heads, inner=20, layers=layers, dropout=dropout, positions=9, padding=PADDING, gain=1.0
    ).double()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)
    return model.eval()


def sentences(batch: int, words: int) -> Tensor:
    return torch.randint(2, 11, (batch, words))


def padded(source: Tensor, more: int) -> Tensor:
    return nn.functional.pad(source, (0, more), value=PADDING)


def test_the_counts_match_the_paper_exactly():
    with torch.device("meta"):
        model = Transformer(
            vocabulary=9521, width=512, heads=8, inner=2048, layers=6, dropout=0.1, positions=200, padding=PADDING, gain=1.0
        )
    assert counting.parameters(model) == 48_978_432
    choice = lowrank.choose(model, **HYBRID)
    assert not choice.left
    assert set(choice.ranks.values()) == {128}
    lowrank.restructure(model, choice.ranks, model.initialise)
    assert counting.parameters(model) == 26_696_192


def plain_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-6).sqrt() * norm.weight + norm.bias


def plain_attention(queries: Tensor, places: Tensor, part: Attention, heads: int) -> Tensor:
    """The attention output of each query (n, width) over the places (m, width)."""
    size = queries.shape[1] // heads
    found = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        query, key, value = (part.get_submodule(name).weight[own] for name in ("query", "key", "value"))
        match = (queries @ query.T) @ (places @ key.T).T / math.sqrt(size)
        weights = match.exp() / match.exp().sum(1, keepdim=True)
        found.append(weights @ (places @ value.T))
    return torch.cat(found, 1) @ part.out.weight.T


def plain_feed_forward(x: Tensor, layer: EncoderLayer | DecoderLayer) -> Tensor:
    part = layer.feed_forward
    inner = (x @ part.inner.weight.T + part.inner.bias).clamp(min=0)
    return plain_norms(x + inner @ part.outer.weight.T + part.outer.bias, layer.feed_forward_norm)


def plain_norms(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return torch.stack([plain_norm(place, norm) for place in x])


def plain_embedding(words: list[int], model: Transformer) -> Tensor:
    width = model.embedding.weight.shape[1]
    wave = [
        [(math.cos if i % 2 else math.sin)(place / 10000 ** ((i - i % 2) / width)) for i in range(width)]
        for place in range(len(words))
    ]
    return model.embedding.weight[words] + torch.tensor(wave, dtype=torch.double)


def plain_forward(model: Transformer, source: list[int], target: list[int], heads: int) -> Tensor:
    """One sentence without padding, by loops over heads and places."""
    x = plain_norms(plain_embedding(source, model), model.encoder_norm)
    for layer in model.encoder:
        x = plain_norms(x + plain_attention(x, x, layer.attention, heads), layer.attention_norm)
        x = plain_feed_forward(x, layer)
    y = plain_norms(plain_embedding(target, model), model.decoder_norm)
    for layer in model.decoder:
        past = [plain_attention(y[t : t + 1], y[: t + 1], layer.self_attention, heads)[0] for t in range(len(target))]
        y = plain_norms(y + torch.stack(past), layer.self_attention_norm)
        y = plain_norms(y + plain_attention(y, x, layer.cross_attention, heads), layer.cross_attention_norm)
        y = plain_feed_forward(y, layer)
    return y @ model.embedding.weight.T / math.sqrt(y.shape[1])


@pytest.mark.parametrize(("width", "heads"), [(12, 3), (8, 1), (5, 5)])  # with an odd width, one sine has no cosine
def test_the_net_computes_the_same_as_a_plain_implementation(width: int, heads: int):
    model = tiny(width=width, heads=heads)
    lengths = ((4, 5), (7, 3), (1, 1))
    pairs = [(sentences(1, source)[0], sentences(1, target)[0]) for source, target in lengths]
    batch = (nn.utils.rnn.pad_sequence(side, batch_first=True, padding_value=PADDING) for side in zip(*pairs, strict=True))
    logits = model(*batch)
    for ours, (source, target) in zip(logits, pairs, strict=True):
        theirs = plain_forward(model, source.tolist(), target.tolist(), heads)
        # the table of positions is in single precision
        torch.testing.assert_close(ours[: len(target)], theirs, rtol=1e-5, atol=1e-5)


def test_padding_of_the_source_changes_nothing():
    model, source, target = tiny(), sentences(3, 4), sentences(3, 5)
    torch.testing.assert_close(model(padded(source, 3), target), model(source, target))


def test_a_later_word_of_the_target_changes_no_earlier_logit():
    model, source, target = tiny(), sentences(2, 4), sentences(2, 6)
    before = model(source, target)
    for place in range(6):
        other = target.clone()
        other[:, place] = (target[:, place] - 1) % 9 + 2
        after = model(source, other)
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-14)
        assert (after[:, place] - before[:, place]).abs().max() > 1e-6


@settings(max_examples=10)
@given(batch=st.integers(1, 4), shared=st.integers(1, 3), seed=st.integers(0, 99))
def test_decoding_step_by_step_matches_the_full_pass_also_when_rows_share_a_source(batch: int, shared: int, seed: int):
    model = tiny(seed=seed)
    source, target = padded(sentences(batch, 4), 2), sentences(batch * shared, 6)
    whole = model(source.repeat_interleave(shared, 0), target)
    memory, past = model.encode(source), None
    for place in range(6):
        logits, past = model.step(target[:, place], memory, past)
        torch.testing.assert_close(logits, whole[:, place])
    assert past.length == 6


def test_selecting_rows_of_memory_and_past_selects_the_outputs_of_those_rows():
    model, source, target = tiny(), sentences(3, 4), sentences(3, 2)
    source[1, 3] = PADDING
    memory = model.encode(source)
    _, past = model.step(target[:, 0], memory, None)
    whole, _ = model.step(target[:, 1], memory, past)
    rows = torch.tensor([2, 0, 2, 1])
    chosen, _ = model.step(target[rows, 1], memory.select(rows), past.select(rows))
    torch.testing.assert_close(chosen, whole[rows])


def test_dropout_is_applied_everywhere_in_training_and_never_in_evaluation():
    model, source, target = tiny(dropout=0.5), sentences(2, 4), sentences(2, 5)
    assert torch.equal(model(source, target), model(source, target))
    everywhere = [name for name, layer in model.named_modules() if isinstance(layer, nn.Dropout | Attention)]
    assert len(everywhere) == 1 + 2 * 3 + 2 * 5  # one after the positions, 2 + 1 per encoder layer, 3 + 2 per decoder layer
    for name in everywhere:
        model.eval().get_submodule(name).training = True  # for an Attention: only its own dropout, on the probabilities
        first, second = (model(source, target) for _ in range(2))
        assert not torch.equal(first, second), name


def test_at_full_rank_the_factored_net_computes_the_same():
    model, source, target = tiny(), padded(sentences(2, 4), 1), sentences(2, 5)
    dense = model(source, target)
    choice = lowrank.choose(model, **HYBRID | {"rank_ratio": 1.0})
    assert len(choice.ranks) == 6 + 10  # the second layers: 4 + 2 matrices in the encoder, 2 * 4 + 2 in the decoder
    lowrank.factorise(model, choice.ranks)
    torch.testing.assert_close(model(source, target), dense)


@pytest.mark.parametrize("gain", [1.0, 0.15])
def test_matrices_and_factors_start_within_their_xavier_bounds_times_the_gain_and_fill_them(gain: float):
    torch.manual_seed(0)
    sizes = {"vocabulary": 300, "width": 64, "heads": 4, "inner": 256, "layers": 2, "positions": 9}
    model = Transformer(**sizes, dropout=0.1, padding=PADDING, gain=gain)
    lowrank.restructure(model, lowrank.choose(model, **HYBRID).ranks, model.initialise)
    matrices = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.ndim > 1}
    assert len(matrices) == 1 + (6 + 10) + 2 * (6 + 10)
    for name, matrix in matrices.items():
        bound = math.sqrt(6 / sum(matrix.shape)) * (1.0 if name == "embedding.weight" else gain)
        assert 0.95 * bound < float(matrix.abs().max()) <= bound


def test_every_parameter_gets_a_gradient_from_every_batch():
    model = tiny()
    model(sentences(2, 4), sentences(2, 5)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_sizes_that_do_not_fit_are_refused_with_a_clear_message():
    with pytest.raises(InputError, match=r"model\.net\.width=10 must be a multiple of model\.net\.heads=4"):
        tiny(width=10, heads=4)
    model = tiny()
    assert model(sentences(1, 9), sentences(1, 9)).shape == (1, 9, 11)
    for source, target in ((10, 1), (1, 10)):
        with pytest.raises(InputError, match=r"a sentence of 10 words is longer than model\.net\.positions=9"):
            model(sentences(1, source), sentences(1, target))
    memory, past = model.encode(sentences(1, 2)), None
    for _ in range(9):
        _, past = model.step(sentences(1, 1)[0], memory, past)
    with pytest.raises(InputError, match="a sentence of 10 words"):
        model.step(sentences(1, 1)[0], memory, past)
