"""The breakdown of a step: its tables and charts show what the record says."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import breakdown as command
from pufferfish_bench.records import measured
from pufferfish_bench.records.files import SECTIONS
from pufferfish_bench.records.measured import PARTS
from pufferfish_bench.report import breakdown
from tests.support.records import COMPUTING, write_run


def of_phase(phase: str, seconds: float) -> dict[str, Any]:
    return {"phase": phase, "epoch": 0, "steps": 4, "timed_steps": 4, "seconds": seconds, "seconds_forward": seconds}


def lab(folder: Path) -> list[str]:
    """A small lab: two methods, two and four hosts, two caps."""
    return [
        str(
            write_run(
                folder / f"{method}-{workers}-{cap:g}",
                name=f"resnet18-cifar10-{method}-cpu-seed1",
                workers=workers,
                cap=cap,
                sections=COMPUTING | {"communicate": share * 44_695_336 * 8 / cap, "wait": 0.02},
                messages=[("allreduce", int(share * 44_695_336))],
            )
        )
        for workers in (2, 4)
        for cap in (1e8, 1e9)
        for method, share in (("vanilla", 1.0), ("pufferfish", 0.3))
    ]


@given(st.dictionaries(st.sampled_from(SECTIONS), st.floats(0, 1e3), min_size=1), st.integers(3, 50))
def test_sections_and_parts_add_up_to_the_step_and_steps_to_the_epoch(tmp_path_factory, sections: dict, steps: int):
    directory = write_run(tmp_path_factory.mktemp("runs") / "run", sections=sections, steps=steps)
    (run,) = measured.read([str(directory)])
    assert run.seconds == pytest.approx({section: sections.get(section, 0.0) for section in SECTIONS})
    assert run.step_seconds == pytest.approx(sum(sections.values()))
    assert sum(run.part(part) for part in PARTS) == pytest.approx(run.step_seconds)
    assert run.epoch_seconds == pytest.approx(steps * run.step_seconds)


def test_every_section_belongs_to_one_part():
    assert sorted(section for sections in PARTS.values() for section in sections) == sorted(SECTIONS)


def test_the_last_phase_is_shown_unless_another_is_named(tmp_path: Path):
    directory = write_run(tmp_path / "run", earlier=[of_phase("warmup", 8.0)])
    assert measured.read([str(directory)])[0].step_seconds == pytest.approx(sum(COMPUTING.values()))
    assert measured.read([str(directory)], phase="warmup")[0].step_seconds == pytest.approx(2.0)


def test_epochs_of_a_phase_are_weighted_by_their_timed_steps(tmp_path: Path):
    directory = write_run(tmp_path / "run", earlier=[of_phase("train", 8.0)], sections={"forward": 5.0}, steps=10, untimed=2)
    assert measured.read([str(directory)])[0].step_seconds == pytest.approx((4 * 2.0 + 8 * 5.0) / 12)


def test_the_label_of_a_run_is_the_part_of_its_name_that_differs_from_the_others():
    names = ["resnet18-cifar10-vanilla-cpu-seed1", "resnet18-cifar10-pufferfish-cpu-seed1"]
    assert list(measured.short_names(names).values()) == ["vanilla", "pufferfish"]
    names = ["net-pufferfish-cpu", "net-pufferfish-powersgd-cpu"]
    assert list(measured.short_names(names).values()) == ["pufferfish", "pufferfish-powersgd"]
    assert measured.short_names(["net-vanilla"] * 2) == {"net-vanilla": "net-vanilla"}


def test_the_number_of_workers_in_a_name_is_not_part_of_the_label(tmp_path: Path):
    names = {2: "net-pufferfish-2workers-cpu", 4: "net-pufferfish-4workers-cpu"}
    runs = measured.read([str(write_run(tmp_path / name, name=name, workers=workers)) for workers, name in names.items()])
    assert {run.label for run in runs} == {"net-pufferfish-cpu"}


def test_bars_show_a_step_where_epochs_have_different_lengths(tmp_path: Path):
    pytest.importorskip("matplotlib")
    step, steps = sum(COMPUTING.values()), {"two": 10, "four": 10, "long": 12}
    directories = {name: write_run(tmp_path / name, workers=4 if name == "four" else 2, steps=steps[name]) for name in steps}

    def drawn(*names: str) -> tuple[str, float]:
        first, *_ = breakdown.bars(measured.read([f"{name}={directories[name]}" for name in names])).axes
        return first.get_ylabel(), max(bar.get_y() + bar.get_height() for bar in first.patches)

    assert drawn("two") == ("seconds per epoch", pytest.approx(10 * step))
    assert drawn("two", "long") == drawn("two", "four") == ("seconds per step", pytest.approx(step))


def test_hosts_with_more_threads_than_cores_are_named(tmp_path: Path):
    two, four = (measured.read([str(write_run(tmp_path / str(hosts), workers=hosts))]) for hosts in (2, 4))
    assert breakdown.crowding(two) == ""
    assert breakdown.crowding([*two, *four]).startswith("4 hosts have more threads than cores")
    assert ["more threads than cores" in breakdown.sheets(runs)[0].note for runs in (two, four)] == [False, True]


def test_one_rank_is_its_own_slowest_and_fastest(tmp_path: Path):
    directory = write_run(tmp_path / "run", earlier=[of_phase("warmup", 8.0)])
    (run,) = measured.read([str(directory)], phase="warmup")
    assert run.slowest == run.fastest == run.seconds


def test_a_label_given_on_the_command_line_is_used(tmp_path: Path):
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    labelled = measured.read([f"one={runs[0]}", f"two={runs[1]}"])
    assert [run.label for run in labelled] == ["one", "two"]
    with pytest.raises(InputError, match="LABEL=RUN"):
        measured.read([str(run) for run in runs])


def test_groups_are_ordered_by_hosts_and_falling_cap_and_keep_the_order_of_methods(tmp_path: Path):
    found = breakdown.groups(measured.read(list(reversed(lab(tmp_path)))))
    assert list(found) == ["2 hosts, 1 Gbit/s", "2 hosts, 100 Mbit/s", "4 hosts, 1 Gbit/s", "4 hosts, 100 Mbit/s"]
    assert all([run.label for run in group] == ["pufferfish", "vanilla"] for group in found.values())


def test_the_files_hold_what_the_record_holds_and_every_path_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / "figures" / "lab.v1"
    command.main([*lab(tmp_path), "--out", str(out)])
    shown = capsys.readouterr().out
    written = [out.with_name(out.name + ending) for ending in (".csv", ".md", ".png", ".svg")]
    assert sorted(out.parent.iterdir()) == sorted(written)
    assert all(f"written: {path}" in shown for path in written)
    rows = list(csv.DictReader(written[0].open()))
    assert len(rows) == 8
    for row in rows:
        assert float(row["step_seconds_backward"]) == pytest.approx(0.4)
        assert float(row["step_slowest_backward"]) == pytest.approx(0.44)
        assert float(row["step_fastest_backward"]) == pytest.approx(0.36)
        sections = [float(row[f"epoch_seconds_{section}"]) for section in SECTIONS]
        assert math.fsum(sections) == pytest.approx(float(row["epoch_seconds"]))
    assert "4 hosts, 100 Mbit/s: pufferfish" in written[1].read_text()
    assert str(tmp_path) not in "".join(path.read_text() for path in written if path.suffix != ".png")


def test_a_chart_drawn_twice_is_the_same_to_the_byte(tmp_path: Path):
    runs = lab(tmp_path)
    for name in ("one", "two"):
        command.main([*runs, "--out", str(tmp_path / name)])
    for ending in (".png", ".svg", ".csv", ".md"):
        assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes(), ending


def test_wrong_input_is_one_sentence_and_code_2(tmp_path: Path, refused: Callable):
    untimed = write_run(tmp_path / "untimed", sections={}, steps=2, untimed=2)
    askew = write_run(tmp_path / "askew", sections={"svd": 1.0})
    cut = write_run(tmp_path / "cut")
    (cut / "run.json").write_text("{")
    empty = write_run(tmp_path / "empty")
    (empty / "epochs.jsonl").unlink()
    for words, sentence in [
        ([tmp_path / "nowhere"], "there is no run in"),
        ([untimed], "no timed steps"),
        ([askew], "add up to"),
        ([cut], "cannot be read"),
        ([empty], "has not finished an epoch"),
        ([write_run(tmp_path / "good"), "--phase", "warmup"], "its phases are train"),
    ]:
        refused(command.main, words, sentence)
