"""The table of the benchmark is a pure function of the files of its subjects."""

import dataclasses
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.bench import pictures, table
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.bench.targets import TARGETS, Target
from pufferfish_bench.records.files import read_json, write_json
from tests.support.repository import REPOSITORY

KEPT = REPOSITORY / "results" / "bench"
COSTS = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=9)
POINT = {"batch_size": 32, "vanilla": 0.5, "hybrid": 0.4, "times_as_fast": 1.25, "macs_ratio": 2.5}


def content(subject: str, rows: list[Row], **changes: Any) -> dict[str, Any]:
    figures = {"points": [POINT | {"width": width} for width in (0.5, 1.0)], "pays_from_width": {"32": 0.7}}
    conditions = {"commit": "0123456789abcdef", "dirty": False, "versions": {"torch": "2.13.0"}}
    hardware = {"device": "a processor", "cores": 2}
    return {
        "subject": subject, "quick": False, "took_seconds": 90.0, "settings": {}, "rows": [row.as_json() for row in rows],
        "figures": figures, "hardware": hardware, **conditions, **changes,
    }  # fmt: skip


def write(folder: Path, **subjects: list[Row]) -> None:
    for subject, rows in subjects.items():
        write_json(folder / f"{subject}.json", content(subject, rows))


def row(key: str = "lstm", ours: float = 1.0, rival: float = 2.0, **more: Any) -> Row:
    return compare(key, ("ours", [ours]), ("theirs", [rival]), **more)


@given(COSTS)
def test_a_gain_is_the_rivals_cost_over_ours_and_a_share_is_the_inverse(costs: list[tuple[float, float]]):
    ours, rivals = map(list, zip(*costs, strict=True))
    for key, ratios in (("lstm", [b / a for a, b in costs]), ("epoch", [a / b for a, b in costs])):
        found = compare(key, ("ours", ours), ("theirs", rivals))
        assert found.ratio == statistics.median(ratios)
        assert (found.lowest, found.highest) == (min(ratios), max(ratios))
        assert (found.ours_value, found.rival_value) == (statistics.median(ours), statistics.median(rivals))


@pytest.mark.parametrize(
    ("key", "rival", "met"),
    [("lstm", 1.85, True), ("lstm", 1.8, False), ("memory", 1.0, False), ("memory", 1.1, True), ("epoch", 1 / 1.02, True),
     ("epoch", 1 / 1.03, False)],
)  # fmt: skip
def test_a_target_is_met_or_not_in_its_own_direction(key: str, rival: float, met: bool):
    found = row(key, 1.0, rival)
    assert found.met is met
    assert table.cells(found)[-1] == ("yes" if met else "no")


def test_a_target_may_be_a_fraction_of_the_limit():
    assert TARGETS["transformer"].of_limit
    assert row("transformer", 1.0, 1.8, limit=2.0).target == pytest.approx(1.7)
    assert row("transformer", 1.0, 1.8, limit=2.0).met
    assert not row("transformer", 1.0, 1.8, limit=2.2).met
    with pytest.raises(ValueError, match="fraction of its limit"):
        row("transformer")


def test_a_limit_that_is_known_needs_no_measurement():
    assert row("epoch").limit == TARGETS["epoch"].limit == 1.0
    assert row("lstm").limit is None


def test_rates_are_counts_per_second():
    found = row("cifar", 2.0, 40.0, count=100, unit="images/s")
    assert (found.ours_value, found.rival_value, found.ratio) == (50.0, 2.5, 20.0)
    assert table.cells(found)[1] == "ours: 50 images/s"


def test_a_row_survives_being_written_and_read():
    found = row(limit=2.0, note="a note")
    entry = json.loads(json.dumps(found.as_json()))
    assert entry["met"] is True
    assert Row.from_json(entry) == found


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [(1.234, "s", "1.23 s"), (0.01234, "s", "12.3 ms"), (123456789.0, "B", "123 MB"), (12345.6, "images/s", "12,346 images/s")],
)
def test_values_have_a_unit_that_fits(amount: float, unit: str, text: str):
    assert table.value(amount, unit) == text


def test_the_page_has_all_rows_in_the_order_of_the_subjects_with_their_notes(tmp_path: Path):
    write(tmp_path, startup=[row("startup", note="the second")], lstm=[row(note="the first", limit=2.0)])
    page = table.page(table.read(tmp_path))
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert lines[0] == "| row | ours | rival | ratio | spread | limit | target | met |"
    first = (
        "| LSTM layer, low-rank against torch's | ours: 1.00 s | theirs: 2.00 s | 2.00 | 2.00 to 2.00 | 2.00 | >= 1.85 | yes |"
    )
    assert lines[2] == first
    assert lines[3].startswith(f"| {TARGETS['startup'].row} |")
    assert page.index("the first") < page.index("the second")
    assert "**2 of 2 targets met; not measured: nets, transformer," in page
    assert "a processor, 2 cores; torch 2.13.0; commit 012345678." in page


def test_the_page_counts_missed_targets_and_says_that_a_run_was_quick(tmp_path: Path):
    write_json(tmp_path / "lstm.json", content("lstm", [row(), row(rival=1.1)], quick=True, dirty=True))
    page = table.page(table.read(tmp_path))
    assert "**1 of 2 targets met" in page
    assert "A quick run" in page
    assert "012345678 with changes" in page


def test_the_growth_study_has_its_own_table_and_the_width_from_which_it_pays(tmp_path: Path):
    write(tmp_path, growth=[])
    page = table.page(table.read(tmp_path))
    assert "| 0.5 | 32 | 500 ms | 400 ms | 1.25 | 2.50 |" in page
    assert "- Batch 32: the hybrid net is faster from width 0.70 on (interpolated)." in page


def test_the_width_from_which_the_hybrid_net_pays_is_said_in_words():
    assert table.pays(None, [0.125, 1.0]) == "the hybrid net is not faster at any width up to 1."
    assert table.pays(0.125, [0.125, 1.0]) == "the hybrid net is faster at all measured widths, from 0.125 on."


def test_rendering_writes_page_and_pictures_and_shows_the_same_table(tmp_path: Path):
    write(tmp_path, lstm=[row(limit=2.0), row(rival=1.0)], epoch=[row("epoch")], growth=[])
    output = io.StringIO()
    table.render(tmp_path, Console(file=output, width=200))
    assert (tmp_path / "README.md").read_text() == table.page(table.read(tmp_path))
    assert {"bench.png", "growth.png"} <= {path.name for path in tmp_path.iterdir()}
    for found in table.read(tmp_path).rows:
        assert all(text in output.getvalue() for text in table.cells(found))
    before = (tmp_path / "bench.png").read_bytes()
    table.render(tmp_path, Console(file=output))
    assert (tmp_path / "bench.png").read_bytes() == before


def test_a_ratio_that_looks_like_its_target_gets_more_digits():
    found = row("epoch", 1.024, 1.0)
    assert not found.met
    assert table.cells(found)[3] == "1.024"
    assert table.cells(row("epoch", 1.07, 1.0))[3] == "1.07"


def test_a_folder_without_results_is_refused(tmp_path: Path):
    write_json(tmp_path / "beam.json", {"same": 1})
    with pytest.raises(InputError, match="has no results"):
        table.read(tmp_path)


@given(st.floats(0.01, 100), st.sampled_from([">=", "<=", "<"]), st.floats(0.1, 10))
def test_the_picture_puts_met_targets_to_the_right_of_the_line(ratio: float, direction: str, target: float):
    found = dataclasses.replace(row(), ratio=ratio, direction=direction, target=target)
    assert (pictures.relative(found, ratio) > 1) == (found.met and ratio != target)


def test_the_kept_page_is_what_the_kept_files_render_to():
    found = [KEPT / f"{subject}.json" for subject in table.SUBJECTS if (KEPT / f"{subject}.json").exists()]
    assert (KEPT / "README.md").exists() == bool(found)
    if found:
        assert (KEPT / "README.md").read_text() == table.page(table.read(KEPT))


def test_kept_rows_have_the_targets_of_today():
    """A target that changes is not a reason to measure again, but the kept rows must not hide it."""
    by_name: dict[str, Target] = {target.row: target for target in TARGETS.values()}
    for path in KEPT.glob("*.json"):
        for entry in read_json(path).get("rows", []):
            target = by_name[entry["name"]]
            assert (entry["direction"], entry["target"]) == (target.direction, pytest.approx(target.resolved(entry["limit"])))
