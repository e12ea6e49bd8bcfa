"""Forecasts against hand computation and against distributed/prediction.py, and what is recommended from them."""

import json
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pufferfish_bench.advisor import advice, decisions
from pufferfish_bench.advisor import networks as settings
from pufferfish_bench.advisor.decisions import Timing
from pufferfish_bench.distributed import forecast, prediction, units
from pufferfish_bench.distributed.forecast import Method, Training
from pufferfish_bench.records.measured import Link

SECONDS = st.floats(1e-4, 10.0)
BYTES = st.integers(1, 10**9)
BANDWIDTHS = st.floats(1e4, 1e11)


def method(
    label: str = "vanilla", *, seconds: float = 1.0, messages: tuple = (("allreduce", 1000),), **changes: object
) -> Method:
    sections = {"forward": seconds / 4, "backward": seconds / 2, "step": seconds / 4}
    plain = Method(
        label=label, model="full-rank", reducer=label, seconds=sections,
        encode=0.0, decode=0.0, decode_a_worker=0.0, messages=messages, overlapped=False, memory=0, batch_size=8,
    )  # fmt: skip
    return replace(plain, **changes)


@st.composite
def methods(draw: st.DrawFn, label: str = "other") -> Method:
    kind = draw(st.sampled_from(["allreduce", "allgather", "ddp"]))
    sizes = draw(st.lists(BYTES, min_size=1, max_size=4))
    return method(
        label, seconds=draw(SECONDS), messages=tuple(("allreduce" if kind == "ddp" else kind, size) for size in sizes),
        encode=draw(SECONDS), decode=draw(SECONDS), overlapped=kind == "ddp",
        decode_a_worker=draw(SECONDS) if kind == "allgather" else 0.0,
    )  # fmt: skip


def uniform(bandwidth: float, latency: float = 1e-4) -> dict[str, Link]:
    return prediction.uniform(Link(latency, bandwidth))


@st.composite
def networks(draw: st.DrawFn) -> dict[str, Link]:
    """Collectives with links of their own, as a measured network has them; a bandwidth may be too large to measure."""
    bandwidths = st.one_of(BANDWIDTHS, st.just(inf))
    return {kind: Link(draw(st.floats(0, 1e-2)), draw(bandwidths)) for kind in ("allreduce", "allgather")}


def at_an_end(bandwidth: float, range: forecast.Range) -> bool:
    """Whether rounding decides on which side of a limit a bandwidth is."""
    return any(abs(bandwidth / end - 1) <= 1e-6 for end in (range.low, range.high) if 0 < end < inf)


def test_an_allreduce_costs_its_messages_and_its_bytes():
    # 1 s of computation, 0.1 + 0.2 s of coding; 3 * 2 messages of 0.01 s; 2 * 3/4 * 1000 bytes at 500 bytes per second
    found = method(encode=0.1, decode=0.2)
    assert forecast.step_seconds(found, 4, uniform(500.0, 0.01)) == pytest.approx(1.3 + 0.06 + 3.0)


def test_decoding_gathered_messages_grows_with_the_workers():
    found = method(messages=(("allgather", 100),), encode=0.1, decode=0.2, decode_a_worker=0.03)
    assert forecast.step_seconds(found, 8, uniform(700.0, 0.0)) == pytest.approx(1 + 0.1 + 0.2 + 0.24 + 7 * 100 / 700)


def test_overlap_hides_communication_behind_the_backward_pass_except_for_the_last_message():
    # backward 0.5 s, two equal messages, ready after 0.25 and 0.5 s; with 2 workers each puts 1000 bytes on the wire
    found = method(messages=(("allreduce", 1000), ("allreduce", 1000)), overlapped=True)
    assert forecast.step_seconds(found, 2, uniform(10_000, 0.0)) == pytest.approx(1.0 + 0.1)  # the first is hidden
    assert forecast.step_seconds(found, 2, uniform(1_000, 0.0)) == pytest.approx(0.25 + 0.25 + 2.0 + 0.25)  # one after the other
    assert forecast.step_seconds(found, 2, uniform(inf, 0.0)) == pytest.approx(1.0)


@given(methods(), st.integers(2, 1024), BANDWIDTHS)
def test_without_overlap_a_step_is_that_of_the_what_if_model(other: Method, workers: int, bandwidth: float):
    plain = replace(other, overlapped=False)
    expected = prediction.step_seconds(plain.at(workers), workers, uniform(bandwidth))
    assert forecast.step_seconds(plain, workers, uniform(bandwidth)) == pytest.approx(expected)
    overlapped = forecast.step_seconds(replace(other, overlapped=True), workers, uniform(bandwidth))
    local = prediction.local_seconds(plain.at(workers), workers)
    assert local <= overlapped <= expected * (1 + 1e-9)


@given(methods(), methods("vanilla"), st.integers(2, 64), st.sampled_from([0.0, 0.02]), networks(), BANDWIDTHS)
def test_a_method_pays_exactly_where_its_predicted_step_is_shorter(
    other: Method, baseline: Method, workers: int, margin: float, links: dict[str, Link], somewhere: float
):
    baseline = replace(baseline, overlapped=False)
    where = forecast.pays(Training(other), baseline, workers, links, margin)
    own, plain = (forecast.step_seconds(each, workers, forecast.scaled(links, somewhere)) for each in (other, baseline))
    assume(where is None or not at_an_end(somewhere, where))
    assume(abs((1 + margin) * own / plain - 1) > 1e-9)
    assert ((1 + margin) * own < plain) == (where is not None and somewhere in where)


@given(methods(), st.integers(2, 64), networks())
def test_just_below_break_even_a_method_pays_and_just_above_it_does_not(other: Method, workers: int, links: dict[str, Link]):
    # the baseline sends most, and computes less than the other by more than the latency of its message
    baseline = method(seconds=1e-5, messages=(("allreduce", 10**28),))
    links["allreduce"] = replace(links["allreduce"], latency=0.0)
    where = forecast.pays(Training(other), baseline, workers, links)
    assert where.low == 0.0
    gaps = []
    for bandwidth in (0.999 * where.high, where.high, 1.001 * where.high):
        here = forecast.scaled(links, bandwidth)
        own, plain = (forecast.step_seconds(each, workers, here) for each in (other, baseline))
        gaps.append((own - plain) / plain)
    assert gaps[0] < 0
    assert gaps[1] == pytest.approx(0, abs=1e-9)
    assert gaps[2] > 0


@given(methods(), st.integers(2, 64), networks())
def test_each_collective_costs_its_own_latency_and_bandwidth(other: Method, workers: int, links: dict[str, Link]):
    plain = replace(other, overlapped=False)
    expected = prediction.local_seconds(plain.at(workers), workers) + sum(
        prediction.COLLECTIVES[kind](size, workers, links[kind].latency, links[kind].bandwidth) for kind, size in plain.messages
    )
    assert forecast.step_seconds(plain, workers, links) == pytest.approx(expected)
    doubled = {kind: replace(link, bandwidth=2 * link.bandwidth) for kind, link in links.items()}
    assume(all(link.bandwidth < inf for link in links.values()))
    found = forecast.scaled(links, 2 * links["allreduce"].bandwidth)
    for kind, link in doubled.items():
        assert found[kind].latency == link.latency
        assert found[kind].bandwidth == pytest.approx(link.bandwidth)


@given(methods(), methods("vanilla"), st.integers(2, 64))
def test_the_break_even_bandwidth_is_that_of_the_what_if_model(other: Method, baseline: Method, workers: int):
    other, baseline = replace(other, overlapped=False), replace(baseline, overlapped=False)
    where = forecast.pays(Training(other), baseline, workers, uniform(1.0))
    point = prediction.break_even(baseline.at(workers), other.at(workers), workers, 1e-4)
    if point.bandwidth is None:
        assert where in (None, forecast.Range(0.0, inf))
    elif point.slow_network.label == "other":
        assert where.low == 0.0
        assert where.high == pytest.approx(point.bandwidth)
    else:
        assert where.low == pytest.approx(point.bandwidth)
        assert where.high == inf


@given(st.lists(methods(), min_size=1, max_size=4), methods("vanilla"), st.integers(2, 64), networks(), BANDWIDTHS)
def test_regimes_cover_all_bandwidths_and_name_the_method_that_is_recommended_there(
    others: list[Method], baseline: Method, workers: int, links: dict[str, Link], bandwidth: float
):
    named = [replace(each, label=f"m{place}", reducer=f"m{place}") for place, each in enumerate(others)]
    baseline = replace(baseline, overlapped=False)
    found = forecast.regimes([Training(each) for each in named], baseline, workers, links, 0.02)
    assert found[0].range.low == 0.0
    assert found[-1].range.high == inf
    assert all(one.range.high == other.range.low for one, other in pairwise(found))
    here = next((each for each in found if bandwidth in each.range), None)
    assume(here is not None and not at_an_end(bandwidth, here.range))
    advised = decisions.recommend([baseline, *named], workers, forecast.scaled(links, bandwidth), 0.02)
    assert advised.method == here.method


def test_the_sentence_names_the_method_what_to_add_below_and_where_nothing_pays():
    slow = 1e9  # bytes per second
    vanilla = method(seconds=1.0, messages=(("allreduce", 10**9),))
    puffer = method("Pufferfish", seconds=1.05, messages=(("allreduce", 10**8),), model="Pufferfish", reducer="allreduce")
    both = method("Pufferfish + PowerSGD rank 4", seconds=1.3, messages=(("allreduce", 10**6),), model="Pufferfish",
                  reducer="PowerSGD rank 4")  # fmt: skip
    advised = decisions.recommend([vanilla, puffer, both], 2, uniform(slow, 0.0), 0.0)
    assert advised.method is puffer
    assert advised.speedup == pytest.approx(2.0 / 1.15)
    # both: 1.3 + 1e6/b = 1.05 + 1e8/b at b = 0.396e9 bytes; Pufferfish: 0.05 = 0.9e9 / b at b = 18e9 bytes
    assert advised.sentence == (
        "at 8 Gbit/s and 2 workers: Pufferfish, 1.7x; below 3.17 Gbit/s add PowerSGD rank 4; above 144 Gbit/s none pays"
    )


def test_none_pays_is_said_where_none_does():
    vanilla = method()
    worse = method("worse", seconds=2.0, messages=(("allreduce", 2000),))
    advised = decisions.recommend([vanilla, worse], 16, uniform(1e9))
    assert advised.method is None
    assert advised.sentence == "at 8 Gbit/s and 16 workers: none pays at any bandwidth"
    smaller = method("smaller", seconds=1.5, messages=(("allreduce", 1),))
    advised = decisions.recommend([vanilla, smaller], 16, uniform(1e9))
    assert advised.method is None
    assert advised.sentence.startswith("at 8 Gbit/s and 16 workers: none pays; below ")


def test_a_method_that_pays_only_between_two_bandwidths_is_named_below_and_above_them():
    # with 2 workers: backward 0.5 s, 1000 bytes on the wire; overlap costs 10 messages more of 0.01 s, and saves at most 0.45 s
    vanilla = method(messages=(("allreduce", 1000),))
    ddp = method("DDP", messages=(("allreduce", 100),) * 10, overlapped=True)
    found = forecast.regimes([Training(ddp)], vanilla, 2, uniform(1.0, 0.01), 0.02)
    assert [regime.method for regime in found] == [None, ddp, None]
    low, high = found[1].range.low, found[1].range.high
    first, last = (units.show_bits(8 * end) for end in (low, high))
    for bandwidth in (low / 2, high * 2):
        advised = decisions.recommend([vanilla, ddp], 2, uniform(bandwidth, 0.01))
        assert advised.sentence.endswith(f"2 workers: none pays; from {first} to {last} DDP")
    inside = decisions.recommend([vanilla, ddp], 2, uniform((low + high) / 2, 0.01)).sentence
    assert inside.endswith(f"; below {first} none pays; above {last} none pays")


def test_without_a_limit_of_bandwidth_no_infinite_number_is_written():
    vanilla, lighter = method(), method("lighter", seconds=0.5, messages=(("allreduce", 500),))
    advised = decisions.recommend([vanilla, lighter], 16, uniform(inf, 0.0))
    assert advised.sentence == "without a limit of bandwidth and with 16 workers: lighter, 2.0x"
    figures = {kind: {"latency": 0.0, "bandwidth": inf} for kind in ("allreduce", "allgather")}
    measured = {"methods": [vanilla.as_data(), lighter.as_data()], "includes_slower_layers": False, "rounds": 7, "batch_size": 8}
    found = advice.advise(measured | {"epochs": 1, "warmup_epochs": 0}, settings.measured(figures, "here"), [2, 16], [])
    text = json.dumps(found, allow_nan=False)
    assert "inf" not in text
    assert found["network"]["links"]["allreduce"]["bandwidth"] is None
    [regime] = found["recommendations"][0]["regimes"]
    assert regime == {"above": None, "below": None, "method": "lighter"}


@given(methods(), methods("vanilla"), st.integers(2, 64), st.integers(1, 300), st.data())
def test_the_speedup_of_a_whole_run_counts_the_warm_up(
    other: Method, baseline: Method, workers: int, epochs: int, data: st.DataObject
):
    warmup = data.draw(st.integers(0, epochs - 1))
    dense = replace(other, label="r", reducer="r")
    low_rank = replace(dense, label="Pufferfish + r", model="Pufferfish", seconds={"forward": 1e-3})
    every, links = [baseline, dense, low_rank], uniform(1e6)
    plain, full, low = (forecast.step_seconds(each, workers, links) for each in every)
    steps = [full] * warmup + [low] * (epochs - warmup)
    _, of_dense, of_low_rank = forecast.trainings(every, decisions.Plan(epochs, warmup).warmup_share)
    assert forecast.speedup(of_low_rank, baseline, workers, links) == pytest.approx(epochs * plain / sum(steps))
    assert forecast.speedup(of_dense, baseline, workers, links) == pytest.approx(plain / full)


@given(methods(), methods(), st.floats(0.01, 0.99), st.integers(2, 64), networks(), BANDWIDTHS)
def test_the_mean_step_of_a_run_is_the_largest_of_its_lines(
    one: Method, other: Method, share: float, workers: int, links: dict[str, Link], bandwidth: float
):
    run = Training(one, other, share)
    expected = forecast.mean_seconds(run, workers, forecast.scaled(links, bandwidth))
    found = forecast.mean_lines(run, workers, links)
    assert forecast.at_bandwidth(found, bandwidth) == pytest.approx(expected)
    assert found == sorted(found, key=lambda line: line[1])  # none is always below another
    assert found == sorted(found, key=lambda line: -line[0])


@st.composite
def candidates(draw: st.DrawFn) -> list[Method]:
    """Vanilla training, a few reducers on the full-rank network, and the same on Pufferfish's."""
    vanilla = replace(draw(methods("vanilla")), overlapped=False, reducer="m0")
    dense = [vanilla, *(replace(draw(methods(f"m{n}")), reducer=f"m{n}") for n in range(1, draw(st.integers(1, 3))))]
    low_rank = [
        replace(draw(methods(f"p{n}")), model="Pufferfish", reducer=each.reducer, noise=draw(st.sampled_from([0.0, 0.1])))
        for n, each in enumerate(dense)
    ]
    left_out = draw(st.sampled_from([None, *range(1, len(dense) * 2)]))
    return [replace(each, other_optimizer=place == left_out) for place, each in enumerate([*dense, *low_rank])]


PLANS = st.integers(1, 300).flatmap(lambda epochs: st.builds(decisions.Plan, st.just(epochs), st.integers(0, epochs - 1)))


def speedups(found: list[Method], workers: int, links: dict[str, Link], plan: decisions.Plan) -> dict[str, float]:
    """The speed-up of a whole run with each method, epoch by epoch."""
    step = {each.label: forecast.step_seconds(each, workers, links) for each in found}
    first = {each.label: f"m{each.label[1:]}" if each.label.startswith("p") else each.label for each in found}
    first |= {"p0": "vanilla"}
    after = plan.epochs - plan.warmup_epochs
    return {name: plan.epochs * step["vanilla"] / (plan.warmup_epochs * step[first[name]] + after * step[name]) for name in step}


@given(candidates(), st.integers(2, 64), networks(), PLANS)
def test_the_recommended_method_has_the_largest_speedup_of_a_whole_run(
    found: list[Method], workers: int, links: dict[str, Link], plan: decisions.Plan
):
    whole = speedups(found, workers, links, plan)
    least = {each.label: 1 + max(0.02, each.noise) for each in found[1:] if not each.other_optimizer}
    assume(all(abs(whole[label] / limit - 1) > 1e-9 for label, limit in least.items()))
    paying = {label: whole[label] for label, limit in least.items() if whole[label] > limit}
    advised = decisions.recommend(found, workers, links, plan=plan)
    assert (advised.method is None) == (not paying) == ("workers: none pays" in advised.sentence)
    if advised.method:
        assert advised.method.label in paying
        assert paying[advised.method.label] * 1.02 >= max(paying.values()) * (1 - 1e-9)
        assert advised.whole_run == pytest.approx(whole[advised.method.label])


@given(candidates(), st.integers(2, 64), networks(), PLANS, BANDWIDTHS)
def test_regimes_agree_with_the_recommendation_at_a_bandwidth_also_with_a_warm_up(
    found: list[Method], workers: int, links: dict[str, Link], plan: decisions.Plan, bandwidth: float
):
    advised = decisions.recommend(found, workers, links, plan=plan)
    regime = next((each for each in advised.regimes if bandwidth in each.range), None)
    assume(regime is not None and not at_an_end(bandwidth, regime.range))
    there = decisions.recommend(found, workers, forecast.scaled(links, bandwidth), plan=plan)
    assert there.method == regime.method


def test_a_faster_step_that_does_not_make_up_for_the_warm_up_is_not_recommended():
    vanilla = method(seconds=1.0, reducer="allreduce")
    ddp = method("DDP", seconds=0.9, messages=(("allreduce", 1),))
    puffer = method("Pufferfish", seconds=0.85, model="Pufferfish", reducer="allreduce")
    every = [vanilla, ddp, puffer]
    assert decisions.recommend(every, 2, uniform(1e9, 0.0)).method is puffer
    # with a warm-up of 8 of 10 epochs, a run takes 0.97 of the time: 1.03x, less than DDP; alone it pays, and with 9 it does not
    assert decisions.recommend(every, 2, uniform(1e9, 0.0), plan=decisions.Plan(10, 8)).method is ddp
    alone = decisions.recommend([vanilla, puffer], 2, uniform(1e9, 0.0), plan=decisions.Plan(10, 8))
    assert alone.sentence.startswith("at 8 Gbit/s and 2 workers: Pufferfish, 1.2x a step (1.03x for the whole run")
    assert decisions.recommend([vanilla, puffer], 2, uniform(1e9, 0.0), plan=decisions.Plan(10, 9)).method is None


def test_the_table_says_where_a_whole_run_pays():
    vanilla = method(seconds=1.0, reducer="allreduce", messages=(("allreduce", 10**9),))
    puffer = method("Pufferfish", seconds=1.0, messages=(("allreduce", 10**8),), model="Pufferfish", reducer="allreduce")
    network = settings.Network("n", uniform(1e9, 0.0), "given")
    _, row = advice.rows([vanilla, puffer], 2, network, decisions.Plan(10, 5))
    # 1.02 (1 + 0.5 * 1.1e9 / b) = 1 + 1e9 / b at b = 0.439e9 / 0.02 bytes
    assert row["pays_below"] == pytest.approx(8 * 0.439e9 / 0.02)


def test_a_recommended_topk_may_cost_accuracy():
    vanilla = method(messages=(("allreduce", 10**9),))
    sparse = method("top-k 1 %", messages=(("allgather", 10),), may_cost_accuracy=True)
    assert decisions.recommend([vanilla, sparse], 2, uniform(1e9, 0.0)).sentence.startswith(
        "at 8 Gbit/s and 2 workers: top-k 1 %, 2.0x, which may cost accuracy; "
    )
    assert "below 400 Gbit/s top-k 1 %, which may cost accuracy" in decisions.recommend(
        [vanilla, sparse], 2, uniform(1e15, 0.0)
    ).sentence  # fmt: skip


def test_the_sentence_names_the_speedup_of_the_whole_run():
    vanilla = method(seconds=1.0, messages=(("allreduce", 10**9),), reducer="allreduce")
    puffer = method("Pufferfish", seconds=0.5, messages=(("allreduce", 10**8),), model="Pufferfish", reducer="allreduce")
    advised = decisions.recommend([vanilla, puffer], 2, uniform(1e9, 0.0), plan=decisions.Plan(300, 80))
    # 2 s and 0.6 s a step; 600 / (160 + 132)
    words = "at 8 Gbit/s and 2 workers: Pufferfish, 3.3x a step (2.1x for the whole run with its 80 warm-up epochs)"
    assert advised.sentence == words


def test_a_method_that_needs_another_optimizer_is_not_recommended():
    vanilla, signs = method(messages=(("allreduce", 10**9),)), method("signs", messages=(("allgather", 1),), other_optimizer=True)
    advised = decisions.recommend([vanilla, signs], 2, uniform(1e6))
    assert advised.method is None
    assert decisions.recommend([vanilla, replace(signs, other_optimizer=False)], 2, uniform(1e6)).method is not None


def test_a_gain_within_the_margin_does_not_count_and_the_simpler_of_two_is_preferred():
    vanilla = method(messages=(("allreduce", 10**9),))
    simple = method("simple", messages=(("allreduce", 10**6),))
    complicated = method("complicated", seconds=0.99, messages=(("allreduce", 10**6),))
    assert decisions.recommend([vanilla, simple, complicated], 2, uniform(1e9)).method is simple
    assert decisions.recommend([vanilla, method("same", seconds=0.99, messages=vanilla.messages)], 2, uniform(1e9)).method is None


@given(methods())
def test_a_method_survives_its_json_file(other: Method):
    assert Method.from_data(json.loads(json.dumps(other.as_data()))) == other


TIMINGS = st.builds(Timing, st.just(1.0), st.floats(0.1, 10), st.floats(0.02, 1))
LAYERS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), max_size=6)


@given(LAYERS, st.dictionaries(st.sampled_from("abcdef"), st.dictionaries(st.integers(1, 4), TIMINGS), max_size=6))
def test_only_layers_that_measured_faster_are_factorised(ranks: dict[str, int], timings: dict[str, dict[int, Timing]]):
    found = decisions.recommended_ranks(ranks, timings)
    for name, rank in ranks.items():
        its = timings.get(name, {})
        timing = its.get(rank)
        assert (name in found) == (timing is not None and timing.ratio < 1 - timing.noise)
        words = decisions.decide(rank, its).words
        assert words.startswith("factor at rank") == (name in found)
        assert (": slower" in words) == (timing is not None and timing.ratio > 1 + timing.noise)
        lower = [other for other, each in its.items() if other < rank and each.faster]
        assert words.endswith("is faster") == (timing is not None and name not in found and bool(lower))
    assert all(found[name] == ranks[name] for name in found)
    assert not decisions.decide(None, {1: Timing(1.0, 0.1, 0.02)}).factor


def test_a_layer_that_the_settings_keep_says_how_it_measured():
    slower, faster, same = Timing(1.0, 1.2, 0.02), Timing(1.0, 0.5, 0.02), Timing(1.0, 1.0, 0.02)
    assert decisions.decide(None, {8: slower, 4: slower}).words == "leave: kept by the settings (measured slower)"
    assert decisions.decide(None, {8: slower, 4: faster, 2: faster}).words == (
        "leave: kept by the settings (measured faster at rank 4)"
    )
    assert decisions.decide(None, {8: slower, 4: same}).words == "leave: kept by the settings (measured no faster)"
    for rank in (None, 8):
        assert decisions.decide(rank, {}).words == "leave: not used in the forward pass"


def test_the_advice_on_a_layer_names_a_lower_rank_that_is_faster():
    timings = {16: Timing(1.0, 1.2, 0.02), 8: Timing(1.0, 0.9, 0.02), 4: Timing(1.0, 0.5, 0.02)}
    assert decisions.decide(16, timings).words == "leave at rank 16: slower; rank 8 is faster"


def test_a_gain_within_the_noise_of_the_step_does_not_count():
    vanilla = method(seconds=1.0, messages=(("allreduce", 100),))
    low_rank = method("Pufferfish", seconds=0.95, messages=(("allreduce", 90),), model="Pufferfish", noise=0.03)
    advised = decisions.recommend([vanilla, low_rank], 2, uniform(1e9, 0.0))
    assert advised.sentence == "at 8 Gbit/s and 2 workers: Pufferfish, 1.05x"
    noisy = decisions.recommend([vanilla, replace(low_rank, noise=0.06)], 2, uniform(1e9, 0.0))
    assert noisy.method is None
    assert "none pays; below" in noisy.sentence  # there it sends less
