"""The network cost model: formulas, the fit, and collectives timed between real processes."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed import network
from pufferfish_bench.distributed.world import single_process

COLLECTIVES = pytest.mark.parametrize("collective", [network.ring_allreduce, network.allgather])
latencies = st.floats(1e-6, 1e-1)
bandwidths = st.floats(1e6, 1e11)
ranks = st.integers(2, 64)

MEASURE = """
import json
from pufferfish_bench.distributed import network, world

here = world.join("cpu", timeout=600, warn_after=0)
figures = network.measure(here, sizes=(8, 512, 32768))
network.LONGEST = 0.0
impatient = network.measure(here, sizes=(8, 512, 32768))
print(json.dumps([figures, impatient]))
"""


def test_the_cost_for_two_ranks_matches_a_calculation_by_hand():
    # two messages of half the bytes each; one message of all of them
    assert network.ring_allreduce(1000, 2, 0.01, 100) == pytest.approx(2 * 0.01 + 2 * 500 / 100)
    assert network.allgather(1000, 2, 0.01, 100) == pytest.approx(0.01 + 1000 / 100)


def test_the_cost_for_four_ranks_matches_a_calculation_by_hand():
    # a ring: each rank sends 3 quarters to reduce and 3 to gather; each rank receives the bytes of 3 others
    assert network.ring_allreduce(1000, 4, 0.01, 100) == pytest.approx(6 * 0.01 + 6 * 250 / 100)
    assert network.allgather(1000, 4, 0.01, 100) == pytest.approx(3 * 0.01 + 3 * 1000 / 100)


@COLLECTIVES
def test_a_single_rank_sends_nothing(collective):
    assert collective(1000, 1, 0.01, 100) == 0


@COLLECTIVES
@given(n=ranks, latency=latencies, bandwidth=bandwidths)
def test_the_fit_recovers_the_latency_and_bandwidth_that_generated_the_points(
    collective, n: int, latency: float, bandwidth: float
):
    points = [[size, collective(size, n, latency, bandwidth)] for size in network.SIZES]
    assert network.fit(collective, points, n) == pytest.approx((latency, bandwidth), rel=1e-6)


@COLLECTIVES
@given(n=ranks, latency=latencies, bandwidth=bandwidths, noise=st.lists(st.floats(0.9, 1.1), min_size=11, max_size=11))
def test_ten_percent_noise_changes_no_prediction_by_more_than_twenty_percent(
    collective, n: int, latency: float, bandwidth: float, noise: list[float]
):
    exact = [collective(size, n, latency, bandwidth) for size in network.SIZES]
    points = [[size, seconds * factor] for size, seconds, factor in zip(network.SIZES, exact, noise, strict=True)]
    fitted = network.fit(collective, points, n)
    assert min(fitted) >= 0
    for end in (0, -1):  # the smallest and the largest size
        assert collective(network.SIZES[end], n, *fitted) == pytest.approx(exact[end], rel=0.2)


@COLLECTIVES
@given(hiccup=st.integers(0, 10), slower=st.floats(2, 100))
def test_an_outlier_at_one_size_does_not_change_the_fit(collective, hiccup: int, slower: float):
    points = [[size, collective(size, 4, 1e-3, 1e7)] for size in network.SIZES]
    points[hiccup][1] *= slower
    assert network.fit(collective, points, 4) == pytest.approx((1e-3, 1e7), rel=1e-6)


@COLLECTIVES
def test_neither_latency_nor_bandwidth_is_negative(collective):
    faster_when_larger = [[8, 0.2], [800, 0.1], [80000, 0.05]]
    latency, bandwidth = network.fit(collective, faster_when_larger, 4)
    assert (latency > 0, bandwidth) == (True, math.inf)
    more_than_proportional = [[100, 0.001], [1000, 0.1], [10000, 10.0]]
    latency, bandwidth = network.fit(collective, more_than_proportional, 4)
    assert latency == 0
    assert 0 < bandwidth < math.inf


def test_a_fit_to_one_rank_is_refused():
    with pytest.raises(ValueError, match="at least 2 ranks, got 1"):
        network.fit(network.allgather, [[8, 0.1], [800, 0.1]], 1)


def test_measuring_with_a_single_worker_is_refused():
    with pytest.raises(InputError, match="at least 2 workers, got 1"):
        network.measure(single_process())


def test_the_formulas_can_be_imported_without_torch():
    check = "import sys, pufferfish_bench.distributed.network; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_two_processes_agree_on_what_they_measured(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    together = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [sys.executable, "-c", MEASURE]
    processes = [
        subprocess.Popen(words, cwd=tmp_path, env=together | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    one, other = (process.communicate(timeout=120)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert json.loads(one) == json.loads(other)
    figures, impatient = json.loads(one)
    assert figures["ranks"] == 2
    for name in ("allreduce", "allgather"):
        assert figures[name].keys() == {"latency", "bandwidth", "points"}
        assert [size for size, _ in figures[name]["points"]] == [8, 512, 32768]
        assert all(seconds > 0 for _, seconds in figures[name]["points"])
        assert len(impatient[name]["points"]) == 1  # larger ones would take too long
