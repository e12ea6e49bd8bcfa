"""Tables that describe: every line of the paper is compared with ours, and a misprint is not a way to hide a difference."""

import csv
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import build
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.paper import architecture, inspections, model_counts, outcome, specifications, tables, verdicts
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.paper.specifications import Line, compare, show
from pufferfish_bench.report import lines
from tests.support.records import report, write_untrained

DESCRIBED = [f"table{number}" for number in range(10, 19)]
PLAIN = Line.parse({"line": "a", "paper": [3, 64], "ours": "conv.weight"})
MISPRINT = Line.parse({"line": "b", "paper": [4, 4], "ours": "fc*", "instead": [4, 2], "misprint": "the count needs it"})


def verdict(line: Line, **inspected: object) -> str:
    return compare("cell", line, {name.replace("_", "."): value for name, value in inspected.items()}).verdict


def test_a_line_is_reproduced_if_all_values_that_it_is_about_are_as_printed():
    assert verdict(PLAIN, conv_weight=[3, 64]) == verdicts.EQUAL
    for wrong in ([64, 3], [3, 64, 1], [3, 65], 64, "none"):
        assert verdict(PLAIN, conv_weight=wrong) == verdicts.DIFFERENT
    assert verdict(PLAIN, other_weight=[3, 64]) == verdicts.DIFFERENT  # ours has no such layer
    several = Line.parse({"line": "c", "paper": [3], "ours": ["one.?", "two"]})
    assert verdict(several, one_1=[3], one_2=[3], two=[3]) == verdicts.EQUAL
    found = compare("cell", several, {"one.1": [3], "one.2": [4], "two": [3]})
    assert (found.verdict, found.ours, found.names) == (verdicts.DIFFERENT, ([3], [4]), ("one.1", "one.2", "two"))
    assert compare("cell", PLAIN, None).verdict == verdicts.NOT_RUN


def test_a_misprint_is_one_only_if_ours_is_what_should_be_printed():
    assert verdict(MISPRINT, fc=[4, 2]) == "misprint: the count needs it"
    assert verdict(MISPRINT, fc=[4, 3]) == verdicts.DIFFERENT
    assert verdict(MISPRINT, fc=[4, 2], fc2=[4, 3]) == verdicts.DIFFERENT
    assert verdict(MISPRINT, fc=[4, 4]) == verdicts.EQUAL
    assert verdict(MISPRINT) == verdicts.DIFFERENT
    absent = Line.parse({"line": "d", "paper": [64], "ours": "bn", "instead": "none", "misprint": "there is none"})
    assert verdict(absent) == "misprint: there is none"
    assert verdict(absent, bn=[32]) == verdicts.DIFFERENT


def test_numbers_are_equal_or_if_they_are_rounded_equal_in_the_digits_that_are_printed():
    about = Line.parse({"line": "share", "paper": 60, "ours": "x", "about": True})
    assert [verdict(about, x=value) for value in (58.55, 54.9)] == [verdicts.EQUAL, verdicts.DIFFERENT]
    count = Line.parse({"line": "outputs", "paper": 1000, "ours": "x"})
    assert [verdict(count, x=value) for value in (1000, 1000.0, 1001)] == [verdicts.EQUAL, verdicts.EQUAL, verdicts.DIFFERENT]
    exact = Line.parse({"line": "eps", "paper": 1e-6, "ours": "x"})
    assert [verdict(exact, x=value) for value in (1e-6, 1e-5, [1e-6])] == [verdicts.EQUAL, *[verdicts.DIFFERENT] * 2]
    assert [show(value) for value in ([512, 128, 3, 3], [0.9, 0.98], 9521, 1e-06, "sgd")] == [
        "512x128x3x3", "0.9, 0.98", "9,521", "1e-06", "sgd"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"ours": "x", "misprint": "why"}, "needs both `instead`"),
        ({"ours": "x", "instead": 2}, "needs both `instead`"),
        ({}, "either `ours`, names of our values, or `untested`"),
        ({"ours": "x", "untested": "why"}, "either `ours`"),
        ({"ours": "x", "misprnt": "why"}, "misprnt: not known"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(words: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        Line.parse({"line": "a", "paper": 1} | words)
    with pytest.raises(InputError, match="no lines for vanilla"):
        specifications.lines("table11", "vanilla")


class Small(nn.Module):
    """One layer of each kind that the paper describes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False)
        self.stages = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Dropout(0.3))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.stages(self.stem(x)).mean(dim=(2, 3)))


def test_layers_are_inspected_with_the_inputs_first_and_with_their_ranks():
    hybrid = {"keep": [], "first": "stages.0", "rank_ratio": 0.25, "ranks": None}
    found = architecture.inspect(Small, lambda: [torch.zeros(1, 3, 32, 32)], hybrid, "hybrid")
    expected = {
        "stem.weight": [3, 8, 5, 5], "stem.filters": [5, 5, 8], "stem.stride": 2, "stem.padding": 2, "stem.rank": "full-rank",
        "stem.image": [16, 16], "stages.0.image": [14, 14], "stages.0.u.weight": [8, 4, 3, 3], "stages.0.v.weight": [4, 16, 1, 1],
        "stages.0.filters": [3, 3, 16], "stages.0.rank": 4, "stages.1.p": 0.3, "stages.length": 2, "fc.u.weight": [16, 2],
        "fc.v.weight": [2, 10], "fc.v.bias": [10], "fc.outputs": 10,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    weights = {"stem": 3 * 8 * 25, "stages": 8 * 16 * 9 + 16, "fc": 16 * 10 + 10}
    for name, count in weights.items():
        assert found[f"{name}.percent_of_full_rank_parameters"] == pytest.approx(100 * count / sum(weights.values()), abs=1e-4)
    assert architecture.inspect(Small, lambda: [torch.zeros(1, 3, 32, 32)], hybrid, "vanilla")["fc.weight"] == [16, 10]
    with pytest.raises(InputError, match="net: low_rank is not known; allowed: vanilla, hybrid"):
        architecture.inspect(Small, lambda: [], hybrid, "low_rank")


def test_the_matrices_of_an_lstm_are_inspected_gate_by_gate():
    with torch.device("meta"):
        model = nn.Sequential(LSTM(6, 8))
    full = architecture.of_module(model[0])
    assert full == {f"{name}.{gate}": [sides, 8] for name, sides in (("ih", 6), ("hh", 8)) for gate in range(4)}
    lowrank.restructure(model, {"0": 2})
    factored = architecture.of_module(model[0])
    assert (factored["u_ih.0"], factored["v_ih.3"], factored["u_hh.1"]) == ([6, 2], [2, 8], [8, 2])


def test_settings_are_flat_and_a_constructor_is_its_last_word():
    nested = {"optimizer": {"_target_": "a.b.sgd", "betas": [0.9, 0.98]}, "clip_norm": 0.25}
    assert inspections.flat(nested) == [("optimizer._target_", "sgd"), ("optimizer.betas", [0.9, 0.98]), ("clip_norm", 0.25)]


@cache
def inspected(name: str, cell: str) -> dict:
    return tables.read(name, "cpu").cell(cell).inspect()


@pytest.mark.parametrize("name", DESCRIBED)
def test_our_nets_and_recipes_are_the_papers_but_for_its_misprints(name: str):
    for cell in tables.read(name, "cpu").cells:
        for line in cell.lines:
            found = compare(cell.name, line, inspected(name, cell.name))
            expected = (
                f"misprint: {line.misprint}" if line.misprint else verdicts.not_tested(line.untested) if line.untested else None
            )
            assert found.verdict == (expected or verdicts.EQUAL), (line.name, found.ours)


@pytest.mark.parametrize("name", DESCRIBED[1:])
def test_every_matrix_of_our_net_is_in_a_line_of_its_table(name: str):
    """Except full-rank shortcuts, and the other half of the Transformer. A line may give filters or outputs of a layer only."""
    (cell,) = tables.read(name, "cpu").cells
    values = inspected(name, "hybrid")
    seen = {ours for line in cell.lines for ours in compare("hybrid", line, values).names}
    skipped = ("shortcut", "downsample", {"table16": "decoder.", "table17": "encoder."}.get(name, "nothing"))
    for ours, value in values.items():
        if ours.endswith(".weight") and len(value) > 1 and not any(word in ours for word in skipped):
            layer = ours.removesuffix(".weight")
            assert {ours, f"{layer}.filters", f"{layer}.outputs"} & seen, ours


def parameters(*overrides: str) -> int:
    return model_counts.describe(**build.described(overrides), as_in_paper=False)["totals"]["hybrid"]["parameters"]


def test_the_misprinted_shapes_contradict_the_papers_own_parameter_counts():
    papers = {
        model: paper_numbers()["models"][model]["hybrid"]["params"] for model in ("vgg19", "resnet50", "wrn50_2", "resnet18")
    }
    full_rank_fc = 2 * (512 * 512 - 2 * 512 * 128)  # two layers, instead of two factors each
    assert parameters("model=vgg19", "model.low_rank.keep=[features.conv1,classifier.*]") == papers["vgg19"] + full_rank_fc
    of_input = "model.low_rank.ranks={layer4.0.conv1: 256, layer4.1.conv1: 512, layer4.2.conv1: 512}"
    added = 128 * (1024 + 512) + 2 * 384 * (2048 + 512)
    assert parameters("model=resnet50", of_input) == papers["resnet50"] + added
    assert parameters("model=wrn50_2", of_input) == papers["wrn50_2"] + 2 * 256 * (2048 + 1024)
    with_stem = build.described(["model=resnet18", "model.net.stem_norm=true"])["build"]
    assert counting.parameters(with_stem()) == paper_numbers()["models"]["resnet18"]["vanilla"]["params"] + 2 * 64


def test_a_planted_shape_is_found_in_the_report_and_only_there(tmp_path: Path):
    values = dict(inspected("table11", "hybrid"))
    values["features.conv12.u.weight"] = [512, 64, 3, 3]
    values["classifier.fc17.u.weight"] = [512, 64]  # a misprint of the paper, and wrong in another way
    write_untrained(tmp_path, "cpu/table11/hybrid", inspected=values)
    report(tmp_path)
    rows = list(csv.DictReader((tmp_path / "tables/cpu/table11.csv").open()))
    wrong = {row["line"]: (row["paper"], row["ours"]) for row in rows if row["verdict"] == verdicts.DIFFERENT}
    assert wrong == {
        "layer12.conv12_u.weight": ("512x128x3x3", "512x64x3x3"), "layer17.fc17.weight": ("512x512", "512x64")
    }  # fmt: skip
    text = (tmp_path / "tables/cpu/table11.md").read_text()
    assert f"{len(rows)} lines: {len(rows) - 5} reproduced, 3 misprint, 2 not reproduced. " in text
    row = "| hybrid | layer12.conv12_u.weight | features.conv12.u.weight | 512x128x3x3 | 512x64x3x3 | not reproduced (differs) |"
    assert row in text
    page = (tmp_path / "report-cpu.html").read_text()
    assert page.count("records/cpu/table11/hybrid/seed1/run.json") == 1
    assert page.count('class="bad">not reproduced (differs)') == 2


def test_lines_that_were_not_inspected_are_not_run():
    found = outcome.read(tables.read("table12", "cpu"), Path("nowhere"), paper_numbers())
    sheet = lines.sheet("", found)
    assert {row[-1].text for row in sheet.rows} == {verdicts.NOT_RUN}
    assert sheet.note.startswith("11 lines: 11 not tested. ")
