"""The charts of the report: they show the records of all seeds, and the same records give the same bytes."""

import io
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from pufferfish_bench.paper import outcome, quantities, tables
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.records.measured import PARTS
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import cell_charts, charts, pictures, size_charts, svg, sweep_charts
from tests.support.records import ablation, plant_company, report, write_cell, write_record

EPOCH = quantities.quantity("seconds_per_epoch").label
FORMS = {  # a table or figure of each form, and two of its cells
    "cells": ("table8", ("low_rank", "hybrid_with_warmup")),
    "breakdown": ("figure6", ("vanilla", "pufferfish_powersgd")),
    "size": ("figure5", ("pufferfish", "lth")),
    "sweep": ("figure3b", ("e05", "e20")),
    "scaling": ("figure4c", ("vanilla_02", "vanilla_04", "pufferfish_02", "pufferfish_04")),
    "gaps": ("figure_budget", ("resnet18_vanilla_x1", "resnet18_pufferfish_x1")),
}


def read(results: Path, name: str, profile: str = "cpu") -> outcome.Outcome:
    return outcome.read(tables.read(name, profile), results / "records", paper_numbers())


def drawn_by(results: Path, *, hash_seed: int) -> dict[str, bytes]:
    """All pictures below a folder, drawn from its records by a process of its own."""
    command = [sys.executable, "-m", "pufferfish_bench.cli.report", "--results", str(results)]
    subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": str(hash_seed)}, check=True, capture_output=True)
    return {
        str(path.relative_to(results)): path.read_bytes() for ending in ("png", "svg") for path in results.rglob(f"*.{ending}")
    }


@pytest.fixture(scope="module")
def every_form(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records and pictures of each form, with two seeds."""
    results = tmp_path_factory.mktemp("results")
    for name, cells in FORMS.values():
        for number, cell in enumerate(cells):
            write_cell(results, f"cpu/{name}/{cell}", (50.0 + number, 60.0), seconds=2.0 + number)
    drawn_by(results, hash_seed=1)
    return results


def words(picture: Path) -> list[str]:
    """What is written on a picture."""
    texts = xml.etree.ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).strip() for text in texts]


def test_every_form_has_a_picture_and_every_table_a_form():
    assert set(pictures.FORMS) == set(tables.PICTURES) == {*FORMS, "lab"}  # the lab: test_bandwidth_report.py
    for form, (name, _) in FORMS.items():
        assert tables.read(name, "cpu").picture == form


def test_pictures_of_every_form_are_the_same_bytes_in_every_process(tmp_path: Path, every_form: Path):
    shutil.copytree(every_form / "records", tmp_path / "records")
    pictures_again = drawn_by(tmp_path, hash_seed=2)
    assert len(pictures_again) == 2 * sum(len(pictures.FORMS[form]) for form in FORMS)
    for name, content in pictures_again.items():
        assert (every_form / name).read_bytes() == content, name


def test_the_names_of_clip_paths_depend_on_their_order_only(every_form: Path):
    template = (
        '<g clip-path="url(#{0})"/><g clip-path="url(#{1})"/><clipPath id="{0}"><clipPath id="{1}"><text>p123456789a</text>'
    )
    one, other = (
        charts.compact(template.format(*names)) for names in (("p00000000aa", "p11111111bb"), ("pcccccccccc", "p0123456789"))
    )
    assert one == other == template.format("clip1", "clip2")
    for picture in every_form.rglob("*.svg"):
        text = picture.read_text()
        used, defined = set(re.findall(r"url\(#(\w+)\)", text)), re.findall(r'<clipPath id="(\w+)"', text)
        assert used == set(defined) == {f"clip{place}" for place in range(1, len(defined) + 1)}


def test_a_compact_picture_has_every_element_and_refers_to_none_that_is_gone():
    with charts.style():
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        axes.errorbar([1, 2], [3, 4], yerr=1, marker="o", label="line2d_1")
        axes.set_ylabel("turned")
        axes.legend()
        plain = io.StringIO()
        figure.savefig(plain, format="svg")
    before, after = plain.getvalue(), charts.compact(plain.getvalue())
    assert len(after) < 0.9 * len(before)
    one, other = (xml.etree.ElementTree.fromstring(text) for text in (before, after))
    assert [element.tag for element in one.iter()] == [element.tag for element in other.iter()]
    assert ["".join(element.itertext()).split() for element in one] == ["".join(element.itertext()).split() for element in other]
    assert after.count("rotate(-90") == before.count("rotate(-90") == 1
    assert set(re.findall(r'(?:href="#|url\(#)(\w+)', after)) <= set(re.findall(r' id="(\w+)"', after))


def test_every_picture_tells_its_seeds_and_where_its_numbers_come_from(every_form: Path):
    for picture in every_form.rglob("*.svg"):
        foot = " ".join(words(picture))
        assert "Mean over 2 seeds" in foot
        assert "profile cpu; commit 0123456789ab; on a processor, 2 threads; finished 2026-01-02." in foot
        assert tables.read(picture.stem.split("-")[0], "cpu").note in foot  # that it is of another data set, say
        assert ("error bars: 95 % interval of the mean" in foot) == (not picture.stem.endswith("breakdown"))


@pytest.mark.parametrize(
    ("picture", "labels"),
    [
        ("tables/cpu/table8", ["low rank", "hybrid with warmup", "minutes of training", "test accuracy, %"]),
        ("figures/cpu/figure6-breakdown", ["vanilla", *PARTS, "seconds per epoch"]),
        ("figures/cpu/figure5-size", ["pufferfish", "lth", "minutes of training, total", "test accuracy, %"]),
        ("figures/cpu/figure3b", ["2", "6", "epochs of warm-up", "test accuracy, %"]),
        ("figures/cpu/figure_budget", ["ResNet-18", "ResNet-18, paper", "1x", "paper"]),
        ("figures/cpu/figure4c", ["2", "4", "workers", EPOCH, "vanilla", "pufferfish", "speedup over 2 workers"]),
    ],
)
def test_a_picture_names_its_axes_and_its_cells(every_form: Path, picture: str, labels: Sequence[str]):
    assert set(labels) <= set(words(every_form / f"{picture}.svg"))
    embedded = re.findall("data:image/svg[^,]*,([^']*)'", (every_form / "report-cpu.html").read_text())
    assert svg.smaller((every_form / f"{picture}.svg").read_text()) in map(urllib.parse.unquote, embedded)


def test_a_single_seed_is_named_and_a_dollar_in_a_machines_name_is_not_maths(tmp_path: Path):
    write_cell(tmp_path, "cpu/table8/low_rank", (70.0,), device="a $dear$ one")
    report(tmp_path)
    foot = " ".join(words(tmp_path / "tables/cpu/table8.svg"))
    assert "One seed. From the records: " in foot
    assert "on a $dear$ one" in foot


def test_curves_are_over_epochs_if_a_run_had_company(tmp_path: Path):
    for cell in ("low_rank", "vanilla"):
        for seed in (1, 2):
            plant_company(write_record(tmp_path / f"records/cpu/table8/{cell}/seed{seed}", values=(10.0, 20.0, 30.0)), 0.0)
    report(tmp_path)
    assert "minutes of training" in words(tmp_path / "tables/cpu/table8.svg")
    plant_company(tmp_path / "records/cpu/table8/vanilla/seed2", 2.0)
    report(tmp_path)
    shown = words(tmp_path / "tables/cpu/table8.svg")
    assert "minutes of training" not in shown
    assert cell_charts.EPOCHS in shown
    found = read(tmp_path, "table8")
    assert cell_charts.several_epochs(found, ["low_rank"])["low_rank"][0] != [1.0, 2.0, 3.0]
    assert cell_charts.several_epochs(found, ["low_rank", "vanilla"])["low_rank"][0] == [1.0, 2.0, 3.0]


def test_a_curve_is_the_mean_over_seeds_up_to_the_shortest(tmp_path: Path):
    for seed, (values, seconds) in enumerate([((10.0, 20.0, 30.0), 60.0), ((20.0, 40.0), 180.0)], start=1):
        write_record(tmp_path / f"records/cpu/table8/low_rank/seed{seed}", values=values, seconds=seconds)
    assert cell_charts.curve(read(tmp_path, "table8").records["low_rank"]) == ([2.0, 4.0], [15.0, 30.0])


def test_every_cell_is_drawn_with_the_first_figure_that_was_measured(tmp_path: Path):
    trained = ["low_rank", "hybrid_with_warmup"]
    write_cell(tmp_path / "without_loss", "cpu/table8/low_rank", (70.0,))
    (without_loss,) = cell_charts.first_figures(read(tmp_path / "without_loss", "table8"), trained)
    assert without_loss.name == "test_accuracy"
    shown = cell_charts.first_figures(read(ablation(tmp_path), "table8"), trained)
    assert [(figure.cell.name, figure.name) for figure in shown] == [
        ("low_rank", "test_loss"),
        ("hybrid_with_warmup", "test_loss"),
    ]


def test_bars_are_the_mean_over_seeds(tmp_path: Path):
    for seed, seconds in enumerate((2.0, 6.0), start=1):
        write_record(tmp_path / f"records/cpu/figure6/vanilla/seed{seed}", seconds=seconds)
    found = read(tmp_path, "figure6")
    run = pictures.mean_run("vanilla", found.records["vanilla"])
    assert run.epoch_seconds == pytest.approx(4.0)
    heights = [bar.get_height() for bar in pictures.bars(found, ["vanilla"]).axes[0].patches]
    assert sum(heights) == pytest.approx(4.0)


def test_lottery_ticket_pruning_has_a_model_per_level_and_other_methods_have_one():
    run = {"summary": {"metric": "m"}, "operations": [{"epoch": 1, "seconds": 60}]}  # a minute of surgery before the second epoch
    half = [{"epoch": epoch, "seconds": 30} for epoch in range(4)]
    levels = [
        row | {"parameters": 4e6, "nonzero_parameters": size, "m": size}
        for row, size in zip(half, (4e6, 4e6, 3e6, 3e6), strict=True)
    ]
    assert size_charts.nets(Record(Path(), run, tuple(levels))) == [(4.0, 2.0, 4e6), (3.0, 3.0, 3e6)]
    factored = [row | {"parameters": size, "m": size} for row, size in zip(half, (4e6, 1e6), strict=False)]
    assert size_charts.nets(Record(Path(), run, tuple(factored))) == [(1.0, 2.0, 1e6)]


def test_sizes_times_and_metrics_are_those_of_all_seeds(tmp_path: Path):
    for seed, seconds in enumerate((30.0, 90.0), start=1):
        write_record(tmp_path / f"records/cpu/figure5/lth/seed{seed}", values=(40.0, 50.0 + seed), seconds=seconds)
    ((size, minutes, value),) = size_charts.over_seeds(read(tmp_path, "figure5").records["lth"])
    assert (size.mean, minutes.values, value.values) == (0.001, (1.0, 3.0), (51.0, 52.0))


def test_a_sweep_is_drawn_over_the_number_that_each_cell_sets(tmp_path: Path):
    for cell, accuracies in {"k10": (60.0, 62.0), "k02": (50.0, 52.0)}.items():
        write_cell(tmp_path, f"cpu/figure3a/{cell}", accuracies)
    points = sweep_charts.swept(read(tmp_path, "figure3a"), ["k02", "k10"])
    assert [(number, sample.values) for number, sample in points] == [(2, (50.0, 52.0)), (10, (60.0, 62.0))]
    by_profile = {profile: tables.read("figure3b", profile).sweep.at["e10"] for profile in ("paper", "cpu")}
    assert by_profile == {"paper": 10, "cpu": 3}


def test_the_reference_of_a_sweep_is_a_horizontal_line_and_no_point(tmp_path: Path):
    for cell, accuracy in {"vanilla": 90.0, "k02": 70.0, "k16": 80.0}.items():
        write_cell(tmp_path, f"cpu/figure3a/{cell}", (accuracy, accuracy))
    found, trained = read(tmp_path, "figure3a"), ["vanilla", "k02", "k16"]
    assert [(number, sample.mean) for number, sample in sweep_charts.swept(found, trained)] == [(2, 70.0), (16, 80.0)]
    above, below = sweep_charts.draw_sweep(found, trained).axes
    (line,) = [line for line in above.lines if line.get_label() == "vanilla"]
    assert set(line.get_ydata()) == {90.0}
    assert {line.get_label() for line in below.lines} == set(trained)  # its learning curve is drawn like the others
    assert sweep_charts.swept(found, ["vanilla"]) == []


def test_scaling_has_a_line_of_workers_for_each_method(tmp_path: Path):
    for cell, seconds in {"vanilla_04": 5.0, "vanilla_02": 8.0, "pufferfish_16": 1.0}.items():
        write_cell(tmp_path, f"cpu/figure4c/{cell}", (1.0, 1.0), seconds=seconds)
    lines = sweep_charts.scaled(read(tmp_path, "figure4c"), ["vanilla_02", "vanilla_04", "pufferfish_16"])
    means = {line: [(workers, sample.mean) for workers, sample in points] for line, points in lines.items()}
    assert means == {"vanilla": [(2, 8.0), (4, 5.0)], "pufferfish": [(16, 1.0)]}
    assert sweep_charts.speedups(lines["vanilla"]) == [(2, 1.0), (4, 1.6)]
    _, gain = sweep_charts.draw_scaling(read(tmp_path, "figure4c"), ["vanilla_02", "vanilla_04", "pufferfish_16"]).axes
    named = [line.get_label() for line in gain.lines]
    assert named == ["vanilla", "linear speedup"]  # Pufferfish was not run with the fewest workers


def test_cells_without_a_common_metric_have_no_common_curves(tmp_path: Path):
    for cell, metric in (("vgg19", "test_accuracy"), ("lstm", "val_ppl")):
        write_record(tmp_path / f"records/cpu/table19/{cell}/seed1", metric=metric, surgery=1.0)
    found = read(tmp_path, "table19")
    assert cell_charts.several_epochs(found, ["vgg19", "lstm"]) == {}
    assert list(cell_charts.several_epochs(found, ["lstm"])) == ["lstm"]
