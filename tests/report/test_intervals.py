"""Pictures draw 95 % intervals: of each cell over its seeds, of a claim's difference, and of the gap at each budget."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from scipy import stats

from pufferfish_bench.paper import outcome, tables
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.report import cell_charts, charts, claim_sheets, gap_charts, output, reproduction, size_charts, sweep_charts
from tests.support.records import report, write_cell, write_record

VALUES = {"one": (70.0, 72.0, 71.5), "two": (60.0, 61.5, 64.0)}
Bar = tuple[float, float]


def interval(values: Sequence[float]) -> Bar:
    """SciPy's t interval of the mean."""
    return stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))


def read(results: Path, name: str) -> outcome.Outcome:
    return outcome.read(tables.read(name, "cpu"), results / "records", paper_numbers())


def drawn(axes: Axes) -> list[Bar]:
    """The ends of all error bars, along the axis that they are drawn in."""
    bars = []
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            along = 0 if container.has_xerr else 1
            for segment in container[2][0].get_segments():
                bars.append((segment[0][along], segment[1][along]))
    return bars


def assert_drawn(axes: Axes, expected: Sequence[Bar]) -> None:
    found = drawn(axes)
    assert len(found) == len(expected)
    for bar, ends in zip(found, expected, strict=True):
        assert bar == pytest.approx(ends)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=6))
def test_error_bars_are_the_t_interval_and_nothing_where_there_is_no_spread(values: list):
    sample = Sample(tuple(values))
    ((below,), (above,)) = charts.error_bars([sample])
    if max(values) - min(values) > 1e-6:
        low, high = interval(values)
        assert (sample.mean - below, sample.mean + above) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))
    elif len(set(values)) == 1:
        assert (below, above) == (0.0, 0.0)
        assert sample.interval is None


def test_the_last_digits_of_an_interval_do_not_change_a_picture():
    ends = (0.1234567890123, 2.0000000000004)
    assert charts.distances([(1.0, ends)]) == charts.distances([(1.0, (ends[0] + 1e-14, ends[1] - 1e-14))])


def test_cells_have_the_interval_of_their_seeds(tmp_path: Path):
    for cell, values in zip(("low_rank", "hybrid_with_warmup"), VALUES.values(), strict=True):
        write_cell(tmp_path, f"cpu/table8/{cell}", values)
    figure = cell_charts.draw(read(tmp_path, "table8"), ["low_rank", "hybrid_with_warmup"])
    assert_drawn(figure.axes[0], list(map(interval, VALUES.values())))


def test_a_sweep_has_the_interval_of_each_setting(tmp_path: Path):
    for cell, values in zip(("k02", "k09"), VALUES.values(), strict=True):
        write_cell(tmp_path, f"cpu/figure3a/{cell}", values)
    figure = sweep_charts.draw_sweep(read(tmp_path, "figure3a"), ["k02", "k09"])
    assert_drawn(figure.axes[0], list(map(interval, VALUES.values())))


def test_models_by_size_have_the_interval_of_their_seeds(tmp_path: Path):
    for cell, values in zip(("vanilla", "lth"), VALUES.values(), strict=True):
        write_cell(tmp_path, f"cpu/figure5/{cell}", values)
    figure = size_charts.draw(read(tmp_path, "figure5"), ["vanilla", "lth"])
    assert_drawn(figure.axes[0], list(map(interval, VALUES.values())))


def test_scaling_has_the_interval_of_each_number_of_workers(tmp_path: Path):
    for seed, seconds in enumerate((2.0, 3.0, 2.5), start=1):
        write_record(tmp_path / f"records/cpu/figure4c/vanilla_02/seed{seed}", seconds=seconds)
    figure = sweep_charts.draw_scaling(read(tmp_path, "figure4c"), ["vanilla_02"])
    assert_drawn(figure.axes[0], [interval((2.0, 3.0, 2.5))])


def claims_picture(results: Path) -> Figure:
    """Table 4 with the two claims about ResNet-18 and VGG-19; seeds differ a lot, differences do not."""
    for net, gap in (("vgg19", 0.5), ("resnet18", 2.0)):
        write_cell(results, f"cpu/table4/{net}_vanilla_fp32", (70.0, 80.0, 90.0))
        write_cell(results, f"cpu/table4/{net}_pufferfish_fp32", (70.1 - gap, 80.0 - gap, 89.8 - gap, 10.0))
    trained = [f"{net}_{method}_fp32" for net in ("vgg19", "resnet18") for method in ("vanilla", "pufferfish")]
    return cell_charts.draw(read(results, "table4"), trained)


def test_a_claim_has_the_interval_of_the_paired_difference_and_its_margin(tmp_path: Path):
    _, differences, _ = claims_picture(tmp_path).axes
    expected = [interval([other - gap for other in (0.1, 0.0, -0.2)]) for gap in (0.5, 2.0)]
    assert_drawn(differences, expected)  # the fourth seed has no partner
    centres = [line.get_xdata()[0] for line in differences.lines if len(line.get_xdata()) == 1 and line.get_marker() == "o"]
    assert centres == pytest.approx([sum(ends) / 2 for ends in expected])
    assert [(band.get_x(), band.get_width()) for band in differences.patches] == [(-1.0, 2.0)] * 2
    assert "paired by seed; grey: margin" in differences.get_xlabel()
    assert [label.get_text().replace("\n", " ") for label in differences.get_yticklabels()] == [
        "Pufferfish VGG-19 is as accurate within 1 point",
        "Pufferfish ResNet-18 is as accurate within 1 point",
    ]


def test_times_are_compared_by_the_interval_of_their_ratio(tmp_path: Path):
    for cell, factor in (("vgg19_vanilla", 2.0), ("vgg19_pufferfish", 1.0)):
        for seed, seconds in enumerate((1.0, 2.0, 3.1), start=1):
            folder = tmp_path / f"records/cpu/table6/{cell}/seed{seed}"
            write_record(folder, seconds=factor * seconds + seed / 100, values=(50.0,))
    found = read(tmp_path, "table6")
    _, ratios = cell_charts.draw(found, ["vgg19_vanilla", "vgg19_pufferfish"]).axes
    assert_drawn(ratios, [found.claims[0].judgement.interval])
    assert ratios.get_xlabel() == "speed-up (paired by seed)"
    low, high = ratios.get_xlim()
    assert 0.9 < low < 1.0 < high  # the line of equal times is in sight, zero is not


def test_every_quantity_of_the_claims_has_its_own_panel_and_incomparable_runs_have_none(tmp_path: Path):
    for cell, values in zip(
        ("low_rank", "hybrid_without_warmup", "hybrid_with_warmup"), (*VALUES.values(), (1, 2, 4)), strict=True
    ):
        for seed, value in enumerate(values, start=1):
            folder = tmp_path / f"records/cpu/table8/{cell}/seed{seed}"
            write_record(folder, values=(value, value), figures={"test_loss": value / 7})
    found = read(tmp_path, "table8")
    groups = cell_charts.compared(found)
    assert [[claim.relation.quantity for claim in group] for group in groups] == [["test_accuracy"] * 2, ["test_loss"]]
    write_cell(tmp_path, "cpu/figure3a/k02", VALUES["one"])
    write_cell(tmp_path, "cpu/figure3a/k09", VALUES["two"], settings={"dataset": {"train_images": 1}, "batch_size": 32})
    assert cell_charts.compared(read(tmp_path, "figure3a")) == []


def budget_records(results: Path) -> None:
    """ResNet-18 at three budgets, with the same deviations in another order of seeds at each; VGG-19 was not run."""
    for place, (entry, gap) in enumerate({"x05": 3.0, "x1": 2.0, "x2": 1.0}.items()):
        epochs, shifts = 4 * 2**place, (0.0, 0.1, -0.07)
        for seed, shift in enumerate((*shifts[place:], *shifts[:place]), start=1):
            for method, value in (("vanilla", 70.0 + seed), ("pufferfish", 70.0 + seed - gap + shift)):
                folder = results / f"records/cpu/figure_budget/resnet18_{method}_{entry}/seed{seed}"
                write_record(folder, values=[value] * epochs)


def test_gaps_have_the_interval_of_the_paired_difference_and_the_papers_its_deviation(tmp_path: Path):
    budget_records(tmp_path)
    found = read(tmp_path, "figure_budget")
    axes, *_ = gap_charts.draw(found, []).axes
    ours = [interval([gap, gap - 0.1, gap + 0.07]) for gap in (3.0, 2.0, 1.0)]
    papers = [(gap.mean - gap.deviation, gap.mean + gap.deviation) for gap in (curve.paper.gap for curve in found.gaps)]
    assert_drawn(axes, [*ours, papers[0], papers[1]])
    assert axes.get_xscale() == "log"
    places = [segment[0][0] for container in axes.containers for segment in container[2][0].get_segments()]
    images = [epochs * 4 * 32 for epochs in (4, 8, 16)]
    assert places == pytest.approx([*images, 15e6, 15e6], rel=0.05)  # the two nets stand side by side


def test_the_sentence_is_on_the_sheet_the_page_and_the_picture(tmp_path: Path):
    budget_records(tmp_path)
    report(tmp_path)
    sentence = "ResNet-18: closing. Vanilla minus Pufferfish changes by -1.00 points per doubling of the budget"
    for file in ("figures/cpu/figure_budget.md", "report-cpu.html"):
        assert sentence in (tmp_path / file).read_text()
    axes, *_ = gap_charts.draw(read(tmp_path, "figure_budget"), []).axes
    title = axes.get_title(loc="left").replace("\n", " ")
    assert sentence in title
    assert "VGG-19: not enough to say (0 budgets, 0 seeds" in title


def test_the_sheet_of_gaps_has_every_budget_and_names_what_was_not_run(tmp_path: Path):
    budget_records(tmp_path)
    (_, sheet) = reproduction.sheets(read(tmp_path, "figure_budget"))
    texts = [[cell.text for cell in row] for row in sheet.rows]
    low, high = interval([3.0, 2.9, 3.07])
    bounds = f"{low:+.2f} to {high:+.2f}"
    assert texts[1] == ["ResNet-18", "0.5x", "4", "512", "72.00 ± 1.00", "69.01 ± 0.97", "+2.99", bounds, "3"]
    assert texts[4] == ["ResNet-18", "4x", "", "", "not run", "not run", "", "", ""]
    assert texts[5] == ["ResNet-18", "paper", "300", "15,000,000", "95.09 ± 0.01", "94.87 ± 0.21", "+0.22 ± 0.21", "", ""]
    assert [row[:2] for row in texts[6:]] == [["VGG-19", entry] for entry in ("0.25x", "0.5x", "1x", "2x", "4x", "paper")]
    report(tmp_path)
    lines = (tmp_path / "figures/cpu/figure_budget-gaps.csv").read_text().splitlines()
    assert len(lines) == 1 + 12
    assert lines[2].startswith("figure_budget,cpu,ResNet-18,0.5,4,512,72,69.01,2.99,")


@pytest.mark.parametrize(("count", "words"), [(200e3, "200 k"), (1.5e6, "1.5 M"), (2e7, "20 M")])
def test_images_are_counted_in_thousands_and_millions(count: float, words: str):
    assert gap_charts.count(count) == words


def test_a_name_without_a_number_is_printed_as_it_is():
    assert claim_sheets.number("figure_budget") == "Figure budget"
    assert output.signed("{:.1f}".format, -1.0) == "-1.0"


def test_a_picture_marks_the_questions_that_are_ours(tmp_path: Path):
    cells = ("vgg19_pufferfish_fp32", "vgg19_narrow_fp32")
    for cell, values in zip(cells, VALUES.values(), strict=True):
        write_cell(tmp_path, f"cpu/table4/{cell}", values)
    figure = cell_charts.draw(read(tmp_path, "table4"), cells)
    labels = [" ".join(label.get_text().split()) for axes in figure.axes for label in axes.get_yticklabels()]
    assert "Pufferfish VGG-19 is more accurate than a vanilla net of equal parameters (ours)" in labels
