"""Predictions for other networks: laws of the model, and its check against measurements."""

import csv
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import whatif as command
from pufferfish_bench.distributed import network, prediction, units
from pufferfish_bench.distributed.prediction import (
    break_even,
    epoch_seconds,
    exchange_seconds,
    local_seconds,
    step_seconds,
    uniform,
)
from pufferfish_bench.records import measured
from pufferfish_bench.records.files import SECTIONS
from pufferfish_bench.records.measured import Link, Measured
from pufferfish_bench.report import whatif
from tests.support.records import COMPUTING, write_run

FREE = uniform(Link(0.0, inf))
VANILLA, SIGNUM = (("allreduce", 44_695_336),), (("allgather", 1_396_730),)


def method(label: str = "method", *, messages: tuple = VANILLA, workers: int = 2, batch_size: int = 32, **sections) -> Measured:
    """A measured step without a record."""
    seconds = dict.fromkeys(SECTIONS, 0.0) | sections
    return Measured(
        overlapped=False,
        label=label, directory=Path(label), name=label, phase="train", workers=workers, hosts=None, cap=None,
        batch_size=batch_size, steps=10, timed_steps=8, seconds=seconds, slowest=seconds, fastest=seconds, bytes_sent=0.0,
        messages=messages, links={}, threads_a_core=None, record={},
    )  # fmt: skip


times = st.floats(1e-4, 10.0)
messages = st.lists(st.tuples(st.sampled_from(["allreduce", "allgather"]), st.integers(1, 10**9)), max_size=3).map(tuple)
methods = st.builds(
    method,
    messages=messages,
    workers=st.integers(2, 16),
    forward=times,
    encode=times,
    decode=times,
    wait=times,
    communicate=times,
)
bandwidths, latencies, counts = st.floats(1e4, 1e12), st.floats(0, 1e-2), st.integers(2, 2048)


def perfect(folder: Path, label: str, *, workers: int, cap: float, messages: tuple, latency: float = 1e-3) -> Path:
    """A run in a lab whose network does exactly as the model says, on two cores, its hosts with one thread each."""
    crowding = workers / 2
    local = {section: seconds * crowding for section, seconds in (COMPUTING | {"encode": 0.05}).items()}
    local["decode"] = 0.02 * crowding * (workers if messages[0][0] == "allgather" else 1)
    formulas = {"allreduce": network.ring_allreduce, "allgather": network.allgather}
    taken = sum(formulas[kind](size, workers, latency, cap / 8) for kind, size in messages)
    return write_run(
        folder / f"{label}-{workers}-{cap:g}", name=f"net-{label}-cpu", workers=workers, cap=cap, latency=latency,
        messages=messages, sections=local | {"communicate": taken}, steps=64 // workers, untimed=2,
    )  # fmt: skip


def perfect_lab(folder: Path) -> list[str]:
    return [
        str(perfect(folder, label, workers=workers, cap=cap, messages=messages))
        for workers in (2, 4)
        for cap in (1e8, 1e9)
        for label, messages in (("vanilla", VANILLA), ("signum", SIGNUM))
    ]


@given(methods, bandwidths, latencies)
def test_one_worker_neither_communicates_nor_waits(run: Measured, bandwidth: float, latency: float):
    links = uniform(Link(latency, bandwidth))
    assert exchange_seconds(run, 1, links) == 0
    assert step_seconds(run, 1, links) == step_seconds(replace(run, seconds=run.seconds | {"wait": 0.0}), 1, FREE)


@given(methods)
def test_on_an_infinitely_fast_network_a_step_takes_its_time_without_communication(run: Measured):
    assert step_seconds(run, run.workers, FREE) == pytest.approx(run.step_seconds - run.seconds["communicate"])


@given(methods, counts, latencies, latencies, bandwidths, bandwidths)
def test_a_better_network_is_never_slower(run: Measured, n: int, low: float, high: float, slow: float, fast: float):
    (low, high), (slow, fast) = sorted((low, high)), sorted((slow, fast))
    assert step_seconds(run, n, uniform(Link(low, fast))) <= step_seconds(run, n, uniform(Link(low, slow))) * (1 + 1e-12)
    assert step_seconds(run, n, uniform(Link(low, slow))) <= step_seconds(run, n, uniform(Link(high, slow))) * (1 + 1e-12)


@given(times, counts)
def test_decoding_grows_with_the_workers_where_messages_are_gathered_and_only_there(decode: float, n: int):
    gathered, reduced = method(messages=SIGNUM, decode=decode, workers=2), method(messages=VANILLA, decode=decode, workers=2)
    assert local_seconds(gathered, n) == pytest.approx(decode * n / 2)
    assert local_seconds(reduced, n) == decode


@given(counts, bandwidths)
def test_a_ring_allreduce_sends_less_than_twice_its_bytes_and_an_allgather_grows_without_bound(n: int, bandwidth: float):
    links, size = uniform(Link(0.0, bandwidth)), 10**6
    assert exchange_seconds(method(messages=(("allreduce", size),)), n, links) < 2 * size / bandwidth
    assert exchange_seconds(method(messages=(("allgather", size),)), n, links) == pytest.approx((n - 1) * size / bandwidth)


@given(times, st.integers(1, 1000), st.integers(1, 50))
def test_without_communication_twice_the_workers_halve_the_epoch_where_steps_stay_whole(forward: float, n: int, steps: int):
    run = method(messages=(), forward=forward)
    samples = 2 * n * run.batch_size * steps
    assert epoch_seconds(run, n, FREE, samples) == pytest.approx(2 * epoch_seconds(run, 2 * n, FREE, samples))


@given(methods, counts, st.integers(1, 10**6), bandwidths)
def test_an_epoch_is_whole_steps_and_at_least_one(run: Measured, n: int, samples: int, bandwidth: float):
    links = uniform(Link(0.0, bandwidth))
    steps = epoch_seconds(run, n, links, samples) / step_seconds(run, n, links)
    assert steps == pytest.approx(round(steps))
    assert steps >= 1
    assert (round(steps) - 1) * n * run.batch_size < samples <= round(steps) * n * run.batch_size


def test_an_epoch_of_a_runs_own_samples_has_its_own_steps():
    run = method(forward=2.0, messages=())
    assert epoch_seconds(run, run.workers, FREE, run.samples) == run.epoch_seconds


@given(methods, methods, counts, latencies, st.floats(1.01, 100))
def test_at_the_break_even_point_both_take_the_same_time_and_each_is_faster_on_its_side(one, other, n, latency, factor):
    point = break_even(one, other, n, latency)

    def seconds(run: Measured, bandwidth: float) -> float:
        return epoch_seconds(run, n, uniform(Link(latency, bandwidth)), 50_000)

    if point.bandwidth is None:
        loser = other if point.slow_network is one else one
        for bandwidth in (1e3, 1e6, 1e9, 1e12):
            assert seconds(point.slow_network, bandwidth) <= seconds(loser, bandwidth) * (1 + 1e-9)
        return
    assert seconds(one, point.bandwidth) == pytest.approx(seconds(other, point.bandwidth), rel=1e-9)
    low, high = point.bandwidth / factor, point.bandwidth * factor
    assert seconds(point.slow_network, low) <= seconds(point.fast_network, low) * (1 + 1e-9)
    assert seconds(point.fast_network, high) <= seconds(point.slow_network, high) * (1 + 1e-9)


@given(methods, methods, counts, latencies)
def test_the_break_even_point_does_not_depend_on_the_order(one: Measured, other: Measured, n: int, latency: float):
    there, back = break_even(one, other, n, latency), break_even(other, one, n, latency)
    if there.bandwidth is None or back.bandwidth is None:
        assert there.bandwidth is back.bandwidth
    else:
        assert there.bandwidth == pytest.approx(back.bandwidth)
        assert there.slow_network is back.slow_network


@given(st.lists(methods, min_size=2, max_size=5), counts, latencies, st.floats(3, 13))
def test_between_handovers_the_fastest_is_the_one_they_name(runs: list[Measured], n: int, latency: float, power: float):
    runs = [replace(run, label=str(number)) for number, run in enumerate(runs)]
    bandwidth, points = 10**power, prediction.handovers(runs, n, latency)
    below, above = [p for p in points if p.bandwidth <= bandwidth], [p for p in points if p.bandwidth > bandwidth]
    times = {run.label: step_seconds(run, n, uniform(Link(latency, bandwidth))) for run in runs}
    for named in [p.fast_network for p in below[-1:]] + [p.slow_network for p in above[:1]]:
        assert times[named.label] == pytest.approx(min(times.values()), rel=1e-6)


def test_in_a_lab_that_obeys_the_model_every_prediction_is_right(tmp_path: Path):
    runs = measured.read(perfect_lab(tmp_path))
    checks = whatif.checks(runs)
    assert {check["source"] for check in checks} == {"itself", "another cap", "other workers"}
    assert len(checks) == 3 * len(runs)
    for check in checks:
        assert check["predicted"] == pytest.approx(check["measured"]), check
        assert check["error"] == pytest.approx(0, abs=1e-9)


def test_a_run_is_predicted_from_one_that_differs_in_the_named_condition_alone(tmp_path: Path):
    runs = measured.read(list(reversed(perfect_lab(tmp_path))))
    for run in runs:
        sources = whatif.sources(run, runs)
        assert all(source.label == run.label for source in sources.values())
        assert sources["itself"] is run
        assert sources["another cap"].workers == run.workers
        assert sources["another cap"].cap != run.cap
        assert sources["other workers"].workers != run.workers
        assert sources["other workers"].cap == run.cap


def test_the_error_is_that_of_the_prediction_relative_to_what_was_measured(tmp_path: Path):
    directory = perfect(tmp_path, "vanilla", workers=2, cap=1e8, messages=VANILLA)
    (run,) = measured.read([str(directory)])
    disturbed = replace(run, seconds=run.seconds | {"communicate": run.seconds["communicate"] + run.step_seconds})
    assert prediction.error(disturbed, disturbed)[1] == pytest.approx(-0.5)


def test_runs_without_a_measured_network_are_predicted_and_marked_as_unchecked(tmp_path: Path):
    runs = measured.read([str(write_run(tmp_path / "run", network=False))])
    assert whatif.checks(runs) == []
    assert "the predictions below are unchecked" in whatif.check_sheet(runs).note


def test_the_break_even_table_says_when_one_is_always_faster():
    light, heavy = method("light", forward=1.0, messages=()), method("heavy", forward=2.0)
    quick = method("quick", forward=0.5)
    (row,) = whatif.break_even_sheet([heavy, light], [2, 4], 0.0).rows
    assert [cell.text for cell in row] == ["light than heavy", "always", "always"]
    (row,) = whatif.break_even_sheet([quick, light], [2], 0.0).rows
    assert [cell.text for cell in row] == ["light than quick", f"< {units.show_bits(8 * 44_695_336 / 0.5)}"]


def test_the_command_writes_what_it_says_the_same_to_the_byte_each_time(tmp_path: Path, capsys: pytest.CaptureFixture):
    runs, out = perfect_lab(tmp_path), tmp_path / "out"
    for name in ("one", "two"):
        command.main([*runs, "--workers", "4,2", "--bandwidth", "1gbit", "--latency", "1ms", "--out", str(out / name)])
    shown = capsys.readouterr().out
    endings = (".csv", "-check.csv", ".md", "-workers.png", "-workers.svg", "-bandwidth.png", "-bandwidth.svg")
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{name}{ending}" for name in ("one", "two") for ending in endings
    )
    for ending in endings:
        assert f"written: {out / 'one'}{ending}" in shown
        assert (out / f"one{ending}").read_bytes() == (out / f"two{ending}").read_bytes(), ending
    rows = list(csv.DictReader((out / "one.csv").open()))
    assert [(row["workers"], row["label"]) for row in rows] == [(n, label) for n in "24" for label in ("vanilla", "signum")]
    for row, run in zip(rows, measured.read(runs[2:4]), strict=False):  # at 1 Gbit/s and 1 ms: the lab itself
        assert float(row["epoch_seconds"]) == pytest.approx(run.epoch_seconds)
    assert "Median error from itself 0.0%" in shown


def test_tables_and_charts_name_the_net_the_batch_size_and_the_measurements(tmp_path: Path):
    command.main([*perfect_lab(tmp_path), "--note", "A net of our own.", "--out", str(tmp_path / "out")])
    document = (tmp_path / "out.md").read_text()
    assert "## Predicted epoch of net, batch 32 per worker, with" in document
    assert "A net of our own. In brackets" in document
    assert "net-vanilla-cpu, 2 hosts, 100 Mbit/s, batch 32, 30 timed steps" in document
    for row in csv.DictReader((tmp_path / "out.csv").open()):
        assert (row["name"], row["batch_size"]) == (f"net-{row['label']}-cpu", "32")
    for chart in ("workers", "bandwidth"):
        words = " ".join(re.sub("<[^>]*>", " ", (tmp_path / f"out-{chart}.svg").read_text()).split())
        for phrase in ("net, batch 32 per worker", "A net of our own.", "measured with 2 hosts, 100 Mbit/s, batch 32 per worker"):
            assert phrase in words, (chart, phrase)


def test_the_command_needs_no_torch():
    program = "import sys; from pufferfish_bench.cli import breakdown, whatif; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@given(st.floats(1, 1e13))
def test_a_bandwidth_shown_and_read_again_is_the_same_to_three_figures(bits: float):
    assert 8 * units.bandwidth(units.show_bits(bits)) == pytest.approx(bits, rel=5.1e-3)


@given(st.floats(1e-6, 900))
def test_a_time_shown_and_read_again_is_the_same_to_three_figures(seconds: float):
    assert units.seconds(units.show_seconds(seconds)) == pytest.approx(seconds, rel=5.1e-3)


@pytest.mark.parametrize("words", ["", "10", "gbit", "-1gbit", "0gbit", "10 gigabit", "1e3mbit", "10GB", "infgbit"])
def test_an_invalid_bandwidth_is_refused_with_what_is_allowed(words: str):
    with pytest.raises(InputError, match="for example 100mbit"):
        units.bandwidth(words)


@pytest.mark.parametrize("words", ["", "50", "-1us", "fastus", "1 minute"])
def test_an_invalid_time_is_refused_with_what_is_allowed(words: str):
    with pytest.raises(InputError, match="for example 50us"):
        units.seconds(words)


def test_wrong_input_is_one_sentence_and_code_2(tmp_path: Path, refused: Callable):
    good = write_run(tmp_path / "good")
    for words, sentence in [
        ([tmp_path / "nowhere"], "there is no run in"),
        ([good, "--workers", "2,,4"], "worker counts"),
        ([good, "--workers", "0"], "worker counts"),
        ([good, "--bandwidth", "fast"], "'fast' is not a rate"),
        ([good, "--latency", "5"], "'5' is not a time"),
        ([good, "--samples", "0"], "--samples must be at least 1, got 0"),
        ([good, f"longer={write_run(tmp_path / 'longer', steps=20)}"], "with --samples"),
        ([write_run(tmp_path / "old", messages=None)], "does not list the messages of a step"),
        ([write_run(tmp_path / "alone", messages=(), workers=1)], "one worker"),
        ([write_run(tmp_path / "other", messages=[("broadcast", 8)])], "only allreduce and allgather"),
    ]:
        refused(command.main, words, sentence)
