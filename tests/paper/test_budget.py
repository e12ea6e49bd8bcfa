"""The gap against the budget: settings that scale with the recipe, a trend with known error rates, and points from records."""

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import build
from pufferfish_bench.paper import budget, gaps, outcome, probe, tables
from pufferfish_bench.paper.budget import CLOSING, FLAT, NOT_ENOUGH, WIDENING
from pufferfish_bench.paper.cells import BudgetRun
from pufferfish_bench.paper.numbers import paper_numbers
from tests.support.records import write_record

TABLE = "figure_budget"
MULTIPLES = {"x025": 0.25, "x05": 0.5, "x1": 1, "x2": 2, "x4": 4}
BUDGETS = (250e3, 500e3, 1e6, 2e6, 4e6)
TRIALS = 600


def values(words: tuple[str, ...]) -> dict[str, Any]:
    found = {key: value for key, _, value in (word.partition("=") for word in words)}
    return {key: [float(part) for part in value.strip("[]").split(",")] for key, value in found.items()}


# settings


@given(
    epochs=st.integers(1, 400), share=st.floats(0, 0.9), times=st.floats(0.05, 8),
    milestones=st.lists(st.floats(0.01, 1), min_size=1, max_size=3),
)  # fmt: skip
def test_epochs_are_scaled_and_everything_else_keeps_its_share(epochs: int, share: float, times: float, milestones: list):
    warmup = int(share * epochs)
    settings = {"epochs": epochs, "warmup_epochs": warmup, "schedule": {"milestones": [part * epochs for part in milestones]}}
    words = values(budget.scaled(settings, times))
    assume(words)
    (scaled,) = words["epochs"]
    least = 2 if warmup else 1
    assert scaled == least or abs(scaled - times * epochs) <= 0.5
    assert scaled >= least
    assert words["schedule.milestones"] == pytest.approx([part * scaled for part in milestones], rel=1e-5)
    if warmup:
        (scaled_warmup,) = words["warmup_epochs"]
        assert 1 <= scaled_warmup < scaled
        assert scaled_warmup in (1, scaled - 1) or abs(scaled_warmup - warmup * scaled / epochs) <= 0.5
    else:
        assert "warmup_epochs" not in words


@given(epochs=st.integers(1, 400), warmup=st.integers(0, 400))
def test_the_whole_budget_is_the_recipe_itself(epochs: int, warmup: int):
    assert budget.scaled({"epochs": epochs, "warmup_epochs": warmup, "schedule": {}}, 1) == ()


def test_halves_are_rounded_up_and_a_schedule_without_milestones_gets_none():
    settings = {"epochs": 18, "warmup_epochs": 5, "schedule": {"learning_rate": 0.2, "rise": 0.2}}
    assert budget.scaled(settings, 0.25) == ("epochs=5", "warmup_epochs=1")
    assert budget.scaled(settings, 4) == ("epochs=72", "warmup_epochs=20")


@pytest.mark.parametrize("profile", tables.PROFILES)
def test_the_whole_budget_is_the_run_of_table_4(profile: str):
    figure, table4 = tables.read(TABLE, profile), tables.read("table4", profile)
    nets = ["vgg19"] if profile == "cpu" else ["vgg19", "resnet18"]  # the cpu profile has a wider ResNet-18 in table 4
    for pair in (f"{net}_{method}" for net in nets for method in ("vanilla", "pufferfish")):
        assert figure.cell(f"{pair}_x1").identity([1, 2]) == table4.cell(f"{pair}_fp32").identity([1, 2])


@pytest.mark.parametrize("profile", tables.PROFILES)
def test_every_cell_has_its_multiple_of_the_recipes_epochs(profile: str):
    for cell in tables.read(TABLE, profile).cells:
        assert cell.budget == MULTIPLES[cell.name.rpartition("_")[2]]
        (found,) = cell.identity([1])
        recipe = cell.recipe()
        assert found.settings["epochs"] == max(2, budget.rounded(cell.budget * recipe["epochs"]))
        assert found.settings["method"].get("warmup_epochs", 1) == found.settings["warmup_epochs"] or "vanilla" in cell.name
        assert found.settings | dict.fromkeys(("epochs", "warmup_epochs", "schedule", "method")) == recipe | dict.fromkeys(
            ("epochs", "warmup_epochs", "schedule", "method")
        )


def test_the_papers_recipe_is_scaled_as_printed():
    cells = [cell for cell in tables.read(TABLE, "paper").cells if cell.line == "vgg19_pufferfish"]
    found = [cell.identity([1])[0].settings for cell in cells]
    assert [(one["epochs"], one["warmup_epochs"], one["method"]["trigger"]["epoch"]) for one in found] == [
        (75, 20, 20), (150, 40, 40), (300, 80, 80), (600, 160, 160), (1200, 320, 320)
    ]  # fmt: skip
    assert [one["schedule"]["milestones"] for one in found] == [
        [37.5, 62.5], [75, 125], [150, 250], [300, 500], [600, 1000]
    ]  # fmt: skip


def test_a_schedule_that_follows_the_epochs_follows_the_budget():
    cell = BudgetRun(
        name="x", figures={}, budget=0.5,
        overrides=("model=resnet18", "method=pufferfish", "schedule=triangle", "epochs=20", "warmup_epochs=5", "profile=cpu"),
    )  # fmt: skip
    ((_, settings),) = build.identify(cell.words, [1])
    assert (settings["epochs"], settings["warmup_epochs"], settings["schedule"]["epochs"]) == (10, 3, 10)
    assert "milestones" not in settings["schedule"]


def test_budgets_are_estimated_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "probe", lambda job: 60.0 * job.settings["epochs"])
    jobs = [job for job in tables.read(TABLE, "paper").jobs(1, tmp_path) if job.cell.line == "vgg19_vanilla"]
    assert sum(probe.estimate(jobs, lambda _: None).values()) == 60.0 * (75 + 150 + 300 + 600 + 1200)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"over": {"x0": {"budget": 0}}}, "budget: 0 must be above 0"),
        ({"gaps": {"quantity": "test_accuracy"}}, "needs `gaps:` with flat, paper_images, nets"),
        ({"gaps": {"quantity": "q", "flat": 1, "paper_images": "p", "nets": {"n": {
            "vanilla": "a", "pufferfish": "c", "paper": {"vanilla": "v", "pufferfish": "p"}}}}}, "no line c .*there are a, b"),
    ],
)  # fmt: skip
def test_a_table_of_gaps_that_contradicts_itself_is_refused(content: dict, sentence: str):
    cells = {name: {"overrides": ["model=vgg19"], "figures": {"test_accuracy": None}} for name in "ab"}
    plain = {"title": "", "seeds": 1, "kind": "budget", "picture": "gaps", "cells": cells, "over": {"x1": {"budget": 1}}}
    with pytest.raises(InputError, match=sentence):
        tables.parse("figure0", "cpu", plain | content)


# the trend


def planted(
    rng: numpy.random.Generator, slope: float, *, noise: float = 0.15, seeds: int = 3, level: float = 3.0
) -> dict[float, dict[int, float]]:
    """Gaps with this slope per doubling; each seed has its own level."""
    levels = {seed: rng.normal(level, 2.0) for seed in range(1, seeds + 1)}
    return {
        images: {seed: own + slope * math.log2(images / BUDGETS[0]) + rng.normal(0, noise) for seed, own in levels.items()}
        for images in BUDGETS
    }


def rates(slope: float, seed: int, **planting: Any) -> dict[str, float]:
    rng = numpy.random.default_rng(seed)
    found = [budget.trend(planted(rng, slope, **planting), 0.25).verdict for _ in range(TRIALS)]
    return {verdict: found.count(verdict) / TRIALS for verdict in (CLOSING, FLAT, WIDENING, NOT_ENOUGH)}


def upper(level: float) -> float:
    """A rate that a true rate of `level` exceeds once in ten thousand times."""
    return stats.binom.ppf(0.9999, TRIALS, level) / TRIALS


def test_planted_slopes_are_found():
    assert rates(-0.5, 1, level=15.0)[CLOSING] > 0.99
    assert rates(0.5, 2, level=15.0)[WIDENING] > 0.99
    assert rates(0.5, 6, level=-15.0)[CLOSING] > 0.99  # Pufferfish is ahead
    level = rates(0.0, 3)
    assert level[FLAT] > 0.95
    assert level[CLOSING] <= upper(0.025)


def test_without_a_slope_nothing_is_closing_or_widening_more_often_than_stated():
    noisy = rates(0.0, 4, noise=2.0)  # the interval is never inside the margin
    assert 0.005 < noisy[CLOSING] <= upper(0.025)  # it happens: the interval is not wider than stated
    assert 0.005 < noisy[WIDENING] <= upper(0.025)
    assert noisy[NOT_ENOUGH] > 0.9


def test_a_slope_at_the_margin_is_flat_at_most_at_the_stated_rate():
    at_margin = rates(0.25, 5, noise=0.15)
    assert at_margin[FLAT] <= upper(0.025)


@given(st.integers(0, 2**20), st.floats(-2, 2), st.integers(2, 5))
def test_the_interval_is_that_of_a_regression_with_an_intercept_for_each_seed(seed: int, slope: float, seeds: int):
    points = planted(numpy.random.default_rng(seed), slope, seeds=seeds)
    del points[BUDGETS[1]][1]  # one run is missing
    rows = [(number, math.log2(images), gap) for images, of_seed in points.items() for number, gap in of_seed.items()]
    design = numpy.array([[x, *(float(number == each) for each in range(1, seeds + 1))] for number, x, _ in rows])
    y = numpy.array([gap for *_, gap in rows])
    solution, residual, *_ = numpy.linalg.lstsq(design, y, rcond=None)
    degrees = len(rows) - seeds - 1
    error = math.sqrt(residual[0] / degrees * numpy.linalg.inv(design.T @ design)[0, 0])
    half = error * stats.t.ppf(0.975, degrees)
    found = budget.trend(points, 0.25)
    assert (found.budgets, found.seeds) == (5, seeds)
    assert found.slope == pytest.approx(solution[0], rel=1e-6, abs=1e-9)
    assert found.interval == pytest.approx((solution[0] - half, solution[0] + half), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((-0.5, -0.1), CLOSING), ((-0.1, -0.01), FLAT), ((-0.2, 0.2), FLAT), ((0.01, 0.2), FLAT), ((-0.3, 0.2), NOT_ENOUGH),
        ((-0.2, 0.3), NOT_ENOUGH), ((0.1, 0.3), WIDENING), ((-1.0, 0.0), NOT_ENOUGH),
    ],
)  # fmt: skip
def test_the_interval_of_the_slope_decides(interval: tuple, expected: str):
    low, high = interval
    assert budget.verdict(interval, 0.25, gap=2.0) == expected
    assert budget.verdict((-high, -low), 0.25, gap=-2.0) == expected  # Pufferfish is ahead


@pytest.mark.parametrize(
    "points",
    [
        {},
        {1e6: {1: 3.0, 2: 3.1}, 2e6: {1: 2.0, 2: 2.2}},  # two budgets
        {1e6: {1: 3.0}, 2e6: {1: 2.1}, 4e6: {1: 0.9}},  # one seed
        {1e6: {1: 3.0, 2: 3.5}, 2e6: {1: 2.1}, 4e6: {1: 0.9}},  # the second seed has one budget
        {1e6: {1: 3.0, 2: 4.0}, 2e6: {1: 2.0, 2: 3.0}, 4e6: {1: 1.0, 2: 2.0}},  # no spread around the lines
    ],
)
def test_too_few_runs_are_not_enough_to_say(points: dict):
    found = budget.trend(points, 0.25)
    assert (found.verdict, found.slope) == (NOT_ENOUGH, None)
    assert "at least 3 budgets, 2 seeds" in found.sentence("VGG-19")


def test_the_sentence_names_the_verdict_the_slope_and_its_interval():
    found = budget.Trend(CLOSING, 5, 3, -0.812, (-1.1, -0.5))
    assert found.sentence("ResNet-18") == (
        "ResNet-18: closing. Vanilla minus Pufferfish changes by -0.81 points per doubling of the budget (95 % interval -1.10 to "
        "-0.50; 5 budgets, 3 seeds)."
    )


# points from records


def write(results: Path, cell: str, accuracies: dict[int, float], *, epochs: int, **further: Any) -> None:
    settings = {"name": "n", "batch_size": 32} | further
    for seed, accuracy in accuracies.items():
        folder = results / "records/cpu" / TABLE / cell / f"seed{seed}"
        write_record(folder, values=[accuracy] * epochs, settings=settings)


def read(results: Path) -> dict[str, gaps.GapCurve]:
    found = outcome.read(tables.read(TABLE, "cpu"), results / "records", paper_numbers())
    return {curve.net: curve for curve in found.gaps}


def closing(results: Path, **further: Any) -> None:
    """ResNet-18 at three budgets: the gap shrinks by about a point."""
    for epochs, (entry, gap) in zip((4, 8, 16), {"x05": 3.0, "x1": 2.0, "x2": 1.0}.items(), strict=True):
        write(results, f"resnet18_vanilla_{entry}", {1: 80.0, 2: 81.0, 3: 79.0}, epochs=epochs)
        others = {1: 80.0 - gap, 2: 81.1 - gap, 3: 78.95 - gap + epochs / 100}
        write(results, f"resnet18_pufferfish_{entry}", others, epochs=epochs, **further)


def test_gaps_are_paired_by_seed_and_placed_by_the_images_of_the_records(tmp_path: Path):
    write(tmp_path, "resnet18_vanilla_x05", {1: 80.0, 2: 90.0, 3: 70.0}, epochs=3)
    write(tmp_path, "resnet18_pufferfish_x05", {2: 88.0, 1: 79.0, 4: 10.0}, epochs=3)
    point = read(tmp_path)["ResNet-18"].points[1]
    assert (point.budget, point.epochs, point.images) == (0.5, 3, 3 * 4 * 32)  # steps of a planted epoch, batch size
    assert point.gap.by_seed == {1: 1.0, 2: 2.0}
    assert point.gap.interval == pytest.approx(stats.t.interval(0.95, 1, 1.5, 0.5))


def test_the_papers_point_has_its_numbers_its_epochs_and_its_images(tmp_path: Path):
    closing(tmp_path)
    found = {net: curve.paper for net, curve in read(tmp_path).items()}
    assert {net: (point.epochs, point.images) for net, point in found.items()} == dict.fromkeys(found, (300, 300 * 50_000))
    resnet18, vgg19 = found["ResNet-18"].gap, found["VGG-19"].gap
    assert (resnet18.mean, vgg19.mean) == (pytest.approx(0.22), pytest.approx(0.02))
    assert (resnet18.deviation, vgg19.deviation) == (pytest.approx(math.hypot(0.01, 0.21)), pytest.approx(math.hypot(0.01, 0.14)))


def test_what_was_not_run_has_no_gap_and_no_trend(tmp_path: Path):
    closing(tmp_path)
    found = read(tmp_path)
    assert found["ResNet-18"].trend.verdict == CLOSING
    assert [point.gap is not None for point in found["ResNet-18"].points] == [False, True, True, True, False]
    assert found["VGG-19"].trend == budget.Trend(NOT_ENOUGH, 0, 0)
    assert read(tmp_path / "nothing") == {}


def test_runs_on_other_data_or_with_other_budgets_have_no_trend(tmp_path: Path):
    closing(tmp_path / "data", dataset={"train_images": 15000})
    assert read(tmp_path / "data")["ResNet-18"].sentence == "ResNet-18: not comparable (different data)."
    closing(tmp_path / "budget", batch_size=64)
    assert read(tmp_path / "budget")["ResNet-18"].sentence == "ResNet-18: not comparable (different budgets)."


def test_budgets_that_round_to_the_same_epochs_count_once(tmp_path: Path):
    closing(tmp_path)
    before = read(tmp_path)["ResNet-18"].trend
    write(tmp_path, "resnet18_vanilla_x025", {1: 80.0, 2: 81.0, 3: 79.0}, epochs=4)
    write(tmp_path, "resnet18_pufferfish_x025", {1: 77.0, 2: 78.1, 3: 75.99}, epochs=4)
    assert read(tmp_path)["ResNet-18"].trend == before
