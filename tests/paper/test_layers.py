"""Table 1: the paper's formulas compared with the counts of real layers."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import layers, outcome, tables, verdicts
from pufferfish_bench.paper.cells import LayerCount
from pufferfish_bench.paper.numbers import paper_number, paper_numbers

NUMBERS = paper_numbers()
TABLE = tables.read("table1", "cpu")
CELLS = {(cell.layer, cell.net): cell for cell in TABLE.cells}
OF_ONE_PAIR = ("attention", "factorised")  # the paper's formula has a pair for each head, unlike the authors' models


def formula(cell: LayerCount, quantity: str, sizes: dict[str, int]) -> float:
    return paper_number(NUMBERS, cell.figures[quantity], sizes).mean


@given(data=st.data(), which=st.sampled_from([which for which in CELLS if which != OF_ONE_PAIR]))
@settings(deadline=None)
def test_the_formulas_for_parameters_hold_at_any_sizes(data: st.DataObject, which: tuple[str, str]):
    cell = CELLS[which]
    sizes = {name: data.draw(st.integers(1, 9), label=name) for name in cell.sizes if name != "r"}
    if "r" in cell.sizes:  # at most the full rank
        sides = [size for name, size in sizes.items() if name in ("m", "n", "c_in", "c_out", "d", "h")]
        sizes["r"] = data.draw(st.integers(1, min(sides)), label="r")
    assert layers.count(*which, sizes)["parameters"] == formula(cell, "parameters", sizes)


@pytest.mark.parametrize("which", CELLS, ids=" ".join)
def test_orders_of_growth_hold_when_all_sizes_grow(which: tuple[str, str]):
    hides_constants = which[0] not in ("fc", "convolution")
    for scale in (1, 2, 8):  # except k: an even kernel changes the size of the image
        sizes = {name: size if name == "k" else scale * size for name, size in CELLS[which].sizes.items()}
        ratio = layers.count(*which, sizes)["macs"] / formula(CELLS[which], "layer_macs", sizes)
        assert 1 <= ratio <= (verdicts.ORDER if hides_constants else 1)


def test_a_table_of_layers_is_counted_once_and_judged(tmp_path: Path):
    wanted = TABLE.jobs(3, tmp_path)
    assert [job.cell for job in wanted] == list(TABLE.cells)
    assert all(job.run() and job.done for job in wanted)
    found = outcome.read(TABLE, tmp_path, NUMBERS)
    judged = {(figure.cell.layer, figure.cell.net, figure.name): figure.verdict for figure in found.figures}
    assert {place for place, verdict in judged.items() if verdict == verdicts.DIFFERENT} == {(*OF_ONE_PAIR, "parameters")}
    orders = {place for place, verdict in judged.items() if verdict == verdicts.OF_THAT_ORDER}
    assert orders == {place for place in judged if place[0] in ("lstm", "attention", "ffn") and place[2] == "layer_macs"}


@pytest.mark.parametrize(
    ("layer", "net", "sizes", "sentence"),
    [
        ("pooling", "vanilla", {}, "layer: pooling is not known; allowed: fc, "),
        ("fc", "hybrid", {"m": 1, "n": 1}, "net: hybrid is not known"),
        ("fc", "vanilla", {"m": 1}, "sizes of vanilla fc are not valid: .*'n'"),
        ("fc", "factorised", {"m": 1, "n": 1}, "sizes of factorised fc are not valid: 'r'"),
    ],
)
def test_a_layer_that_cannot_be_built_is_refused(layer: str, net: str, sizes: dict[str, int], sentence: str):
    with pytest.raises(InputError, match=sentence):
        layers.count(layer, net, sizes)
