"""Figure 4b over bandwidth, from planted records: its claims, its crossing points and its picture."""

import re
from pathlib import Path

import pytest

from pufferfish_bench.paper import tables
from pufferfish_bench.report import page_tables
from pufferfish_bench.report.output import Cell
from tests.support.records import report, write_lab_run

TIMES = {  # seconds of computation and Mbit sent in a step
    "vanilla": (0.6, 350.0),
    "pufferfish": (0.4, 105.0),
    "powersgd": (0.65, 5.0),
    "signum": (0.7, 11.0),
    "pufferfish+powersgd": (0.43, 5.0),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of figure 4b that differ by a thousandth, and the report on them."""
    folder = tmp_path_factory.mktemp("results")
    for cell in tables.read("figure4b", "cpu").cells:
        computation, sent = TIMES[cell.line]
        for seed, factor in enumerate((0.999, 1.0, 1.001), start=1):
            own = factor if cell.line == "pufferfish" else 1.0
            write_lab_run(
                folder / f"records/cpu/figure4b/{cell.name}/seed{seed}", cap=cell.bits, workers=cell.workers,
                computation=own * computation, communication=own * sent * 1e6 / cell.bits,
                name=f"resnet18-synthetic_images-{cell.line}-paper-seed{seed}",
            )  # fmt: skip
    report(folder)
    return folder


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_list_of_claims_has_one_row_for_a_claim_over_bandwidth_and_the_figure_one_for_each_rate(results: Path):
    claims = (results / "tables/cpu/claims.md").read_text()
    rows = {line.split(" | ")[1]: line.split(" | ") for line in claims.splitlines() if line.startswith("| Figure 4b")}
    in_part = "reproduced (1 Gbit/s to 10 Gbit/s); not reproduced (100 Mbit/s to 300 Mbit/s)"
    speed = {claim: row[-1].removesuffix(" |") for claim, row in rows.items() if "faster per epoch" in claim}
    assert speed == {
        "Pufferfish is faster per epoch than PowerSGD": in_part,
        "Pufferfish is faster per epoch than Signum": in_part,
        "Pufferfish is faster per epoch than vanilla SGD": "reproduced (at all measured rates, 100 Mbit/s to 10 Gbit/s)",
    }
    assert rows["Pufferfish is faster per epoch than PowerSGD"][3:5] == ["1.33x", "0.48x to 1.58x"]
    assert ", 2 different at different rates" in claims  # those of PowerSGD and Signum, among the counts of verdicts
    tested = section((results / "figures/cpu/figure4b.md").read_text(), "Claims")
    assert len(re.findall(r"^\| Pufferfish is faster per epoch than PowerSGD, at ", tested, re.MULTILINE)) == 5
    assert len(re.findall(r"^\| Pufferfish is faster per epoch than PowerSGD \|", tested, re.MULTILINE)) == 1
    assert (results / "figures/cpu/figure4b-relations.csv").read_text().count("faster per epoch than PowerSGD, at") == 5


def test_crossing_points_have_their_bandwidth_their_methods_and_where_they_come_from(results: Path):
    shown = section((results / "figures/cpu/figure4b.md").read_text(), "Crossing points")
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines() if "/s |" in line]
    found = {(row[1], row[2]): (row[0], row[-1]) for row in rows}
    assert found["powersgd", "pufferfish"] == ("400 Mbit/s", "measured rates on both sides")
    assert found["signum", "pufferfish"] == ("313 Mbit/s", "measured rates on both sides")
    assert found["pufferfish+powersgd", "pufferfish"] == ("3.33 Gbit/s", "measured rates on both sides")
    assert ("pufferfish", "vanilla") not in found
    assert "Measured at 100 Mbit/s, 300 Mbit/s, 1 Gbit/s, 3 Gbit/s, 10 Gbit/s." in shown
    assert "vanilla has the paper's communication / computation (0.70) at 833 Mbit/s." in shown


def test_the_picture_numbers_the_crossing_points_and_names_what_is_predicted(results: Path):
    words = " ".join(re.sub("<[^>]*>", " ", (results / "figures/cpu/figure4b-bandwidth.svg").read_text()).split())
    for phrase in (
        "2: 400 Mbit/s: powersgd | pufferfish", "0.70 at 833 Mbit/s:", "unlimited, predicted", "100 Mbit/s", "10 Gbit/s",
        "times as fast as vanilla", "vanilla: communication / computation", "error bars: 95 % interval of the mean",
    ):  # fmt: skip
        assert phrase in words, phrase
    assert (results / "report-cpu.html").read_text().count("<img ") == 5  # the opening, bandwidth, breakdown, two forecasts


def test_breakdown_and_forecast_are_of_the_mean_over_seeds_and_the_forecast_is_not_of_the_papers_net(results: Path):
    figure = (results / "figures/cpu/figure4b-breakdown.svg").read_text()
    assert "of each of 3 runs per bar" in " ".join(re.sub("<[^>]*>", " ", figure).split())
    forecast = (results / "figures/cpu/figure4b-whatif.md").read_text()
    assert "## Predicted epoch of resnet18-synthetic_images, batch 32 per worker" in forecast
    assert "The paper's figure 4 (c) is of ResNet-50" in forecast


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [
        ("reproduced (at all measured rates, 1 Gbit/s to 10 Gbit/s)", "good"),
        ("not reproduced (at all measured rates, 1 Gbit/s to 10 Gbit/s)", "bad"),
        ("reproduced (1 Gbit/s); not reproduced (10 Gbit/s)", None),
        ("reproduced (1 Gbit/s); no significant difference (10 Gbit/s)", None),
        ("no significant difference (10 Gbit/s)", None),
    ],
)
def test_a_verdict_over_bandwidth_has_a_colour_if_it_is_the_same_at_all_rates(verdict: str, colour: str | None):
    cell = page_tables.table_cell(Cell(verdict))
    assert (f'class="{colour}"' in cell) == (colour is not None)
    assert ("class" in cell) == (colour is not None)
