"""Predicts the step of a method from parts that were measured one by one: pure functions on top of prediction.py.

A method without overlap costs what prediction.py says: computation + encode + decode + its collectives. With overlap (DDP) a
message is sent when its gradients are ready, while the backward pass goes on. With the messages m_1 .. m_k in the order in which
they are sent, each ready after its share of the backward pass, the step takes

    the largest over j of (everything until m_j is ready) + (m_j + ... + m_k) + (everything after the backward pass)

and never less than the step without communication. That is an estimate: it takes bytes for a measure of the time of the backward
pass, and communication for free of computation.

So every method takes, for given latencies, the largest of a few times that are affine in 1 / bandwidth. A whole run with a
warm-up takes a sum of two such maxima, which is the largest of all sums of two lines. Where a method begins to pay, and where the
fastest one changes, is solved exactly. Collectives may have different links: the bandwidth is that of
allreduce, and those of the others are in the same proportion to it as in the given links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from math import inf
from pathlib import Path
from typing import Any

from pufferfish_bench.distributed import prediction
from pufferfish_bench.distributed.prediction import COLLECTIVES
from pufferfish_bench.records.measured import PARTS, Link, Measured

Line = tuple[float, float]  # a + b / bandwidth, in seconds
FASTEST = 1e18  # bytes per second: takes the place of an infinite bandwidth
SECTIONS = tuple(section for part in PARTS.values() for section in part)


@dataclass(frozen=True)
class Method:
    """A way to train, with the measured parts of its step on one worker."""

    label: str
    model: str  # "full-rank", or "Pufferfish" for the factorised network
    reducer: str  # the reducer's label
    seconds: Mapping[str, float]  # computation by section; a section that is missing took no time
    encode: float
    decode: float  # of an allreduce, or the part of a gathered decode that does not depend on the number of workers
    decode_a_worker: float  # the part that each gathered message adds
    messages: tuple[tuple[str, int], ...]  # (collective, bytes) of a step
    overlapped: bool  # whether messages are sent during the backward pass; its prediction is an estimate
    memory: int  # bytes of parameters, gradients, optimizer state and buffers of the reducer; without activations
    batch_size: int  # per worker
    overrides: tuple[str, ...] = ()  # settings of pufferfish-run that choose this method
    noise: float = 0.0  # relative, of its computation compared with that of the full-rank network: a smaller gain does not count
    other_optimizer: bool = False  # whether it needs another optimizer than the settings have: then it is not recommended
    may_cost_accuracy: bool = False  # whether a recommendation has to say so

    @property
    def bytes_sent(self) -> int:
        return sum(size for _, size in self.messages)

    def at(self, workers: int) -> Measured:
        """The step that this many workers would measure, without waiting and communication: for prediction.py."""
        times = dict.fromkeys(SECTIONS, 0.0) | dict(self.seconds)
        times |= {"encode": self.encode, "decode": self.decode + workers * self.decode_a_worker}
        return Measured(
            label=self.label, directory=Path(), name=self.label, phase="forecast", workers=workers, hosts=None, cap=None,
            batch_size=self.batch_size, steps=1, timed_steps=0, seconds=times, slowest={}, fastest={},
            bytes_sent=self.bytes_sent, messages=self.messages, overlapped=self.overlapped, links={}, threads_a_core=None,
            record={},
        )  # fmt: skip

    def as_data(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Method":
        messages = tuple((str(kind), int(size)) for kind, size in data["messages"])
        return cls(**{**data, "messages": messages, "overrides": tuple(data["overrides"])})


def lines(method: Method, workers: int, links: Mapping[str, Link]) -> list[Line]:
    """A step takes the largest of these: (seconds that do not depend on bandwidth, bytes on the wire).

    Of another collective than allreduce, the bytes are those that an allreduce could send in the same time.
    """
    run = method.at(workers)
    fixed = prediction.local_seconds(run, workers)
    costs = [
        (COLLECTIVES[kind](size, workers, links[kind].latency, inf), COLLECTIVES[kind](size, workers, 0.0, share(links, kind)))
        for kind, size in method.messages
    ]
    if not method.overlapped:
        return [(fixed + sum(cost[0] for cost in costs), sum(cost[1] for cost in costs))]
    backward, total = run.seconds["backward"], method.bytes_sent
    ready = [backward * sent / total for sent in accumulate(size for _, size in method.messages)]
    found = [(fixed, 0.0)]
    for place, moment in enumerate(ready):
        waiting = fixed - backward + moment
        found.append((waiting + sum(cost[0] for cost in costs[place:]), sum(cost[1] for cost in costs[place:])))
    return found


def finite(bandwidth: float) -> float:
    """A bandwidth too large to measure as a number that has a proportion to others."""
    return bandwidth if bandwidth < inf else FASTEST


def share(links: Mapping[str, Link], kind: str) -> float:
    """The bandwidth of a collective divided by that of allreduce."""
    return finite(links[kind].bandwidth) / finite(links["allreduce"].bandwidth)


def scaled(links: Mapping[str, Link], bandwidth: float) -> dict[str, Link]:
    """The same network with this bandwidth of allreduce: all bandwidths change by the same factor, latencies stay."""
    return {kind: Link(link.latency, bandwidth * share(links, kind)) for kind, link in links.items()}


def step_seconds(method: Method, workers: int, links: Mapping[str, Link]) -> float:
    """The predicted time of a step."""
    return at_bandwidth(lines(method, workers, links), finite(links["allreduce"].bandwidth))


@dataclass(frozen=True)
class Training:
    """A whole run with a method. Its warm-up may be trained with another one."""

    method: Method
    warmup: Method | None = None
    share: float = 0.0  # of the epochs that are warm-up


def trainings(methods: Sequence[Method], share: float) -> list[Training]:
    """A run with each method. A low-rank one has a warm-up, which trains the full-rank network with the same reducer.

    `methods` begins with vanilla training; `share` is the fraction of the epochs that are warm-up.
    """
    full_rank = {method.reducer: method for method in methods if method.model == methods[0].model}
    return [
        Training(method, full_rank[method.reducer], share) if share and method.model != methods[0].model else Training(method)
        for method in methods
    ]


def mean_seconds(training: Training, workers: int, links: Mapping[str, Link]) -> float:
    """The predicted time of a step, as the mean over a whole run."""
    own = step_seconds(training.method, workers, links)
    if training.warmup is None:
        return own
    return training.share * step_seconds(training.warmup, workers, links) + (1 - training.share) * own


def speedup(training: Training, baseline: Method, workers: int, links: Mapping[str, Link]) -> float:
    """Of a whole run over one with `baseline`."""
    return step_seconds(baseline, workers, links) / mean_seconds(training, workers, links)


def mean_lines(training: Training, workers: int, links: Mapping[str, Link]) -> list[Line]:
    """The mean step of a whole run takes the largest of these; see `lines`."""
    own = envelope(lines(training.method, workers, links))
    if training.warmup is None:
        return own
    warmup, share = envelope(lines(training.warmup, workers, links)), training.share
    return envelope([
        (share * fixed + (1 - share) * own_fixed, share * wire + (1 - share) * own_wire)
        for fixed, wire in warmup
        for own_fixed, own_wire in own
    ])  # fmt: skip


def envelope(found: Sequence[Line]) -> list[Line]:
    """Those lines that are the largest at some bandwidth."""

    def crossing(one: Line, other: Line) -> float:
        return (one[0] - other[0]) / (other[1] - one[1])

    kept: list[Line] = []
    for line in sorted(found, key=lambda each: (each[1], each[0])):
        while kept and kept[-1][0] <= line[0]:  # it has fewer bytes, and takes no longer without them either
            kept.pop()
        while len(kept) > 1 and crossing(kept[-1], line) <= crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(line)
    return kept


def at_bandwidth(found: Sequence[Line], bandwidth: float) -> float:
    return max(fixed + wire / bandwidth for fixed, wire in found)


@dataclass(frozen=True)
class Range:
    """The bandwidths, in bytes per second, at which a method pays; both ends are excluded."""

    low: float
    high: float

    def __contains__(self, bandwidth: float) -> bool:
        return self.low < bandwidth < self.high


def pays(training: Training, baseline: Method, workers: int, links: Mapping[str, Link], margin: float = 0.0) -> Range | None:
    """Where a whole run, made longer by `margin` or the noise of its method, is shorter than one of `baseline`. None: nowhere.

    The baseline must not overlap. The bandwidth is that of allreduce; see `scaled`.

    With x = 1 / bandwidth, each line must satisfy (1 + margin) (a + b x) < A + B x: a half-line of x.
    """
    margin = max(margin, training.method.noise)
    [(fixed, wire)] = lines(baseline, workers, links)
    low, high = 0.0, inf  # of x
    for own_fixed, own_wire in mean_lines(training, workers, links):
        gain, growth = fixed - (1 + margin) * own_fixed, (1 + margin) * own_wire - wire  # growth * x < gain
        if growth > 0:
            high = min(high, gain / growth)
        elif growth < 0:
            low = max(low, gain / growth)
        elif gain <= 0:
            return None
    if not low < high:
        return None
    return Range(1 / high if high < inf else 0.0, 1 / low if low > 0 else inf)


@dataclass(frozen=True)
class Regime:
    """A range of bandwidths and the fastest method there; None: no method pays."""

    range: Range
    method: Method | None


def preferred(methods: Sequence[Method], times: Mapping[str, float], margin: float) -> Method | None:
    """The first method whose time is at most `margin` longer than the shortest: a later one must be worth its complications."""
    shortest = min((times[method.label] for method in methods), default=inf)
    return next((method for method in methods if times[method.label] <= (1 + margin) * shortest), None)


def regimes(
    runs: Sequence[Training], baseline: Method, workers: int, links: Mapping[str, Link], margin: float = 0.0
) -> list[Regime]:
    """The preferred method of those that pay at every bandwidth, from slow networks to fast ones."""
    found = {run.method.label: mean_lines(run, workers, links) for run in runs}
    where = {run.method.label: pays(run, baseline, workers, links, margin) for run in runs}
    ordered = [0.0, *critical([*found.values()], [range for range in where.values() if range], margin), inf]
    merged: list[Regime] = []
    for low, high in pairwise(ordered):
        inside = between(low, high)
        paying = [run.method for run in runs if (its := where[run.method.label]) and inside in its]
        best = preferred(paying, {method.label: at_bandwidth(found[method.label], inside) for method in paying}, margin)
        if merged and merged[-1].method is best:
            low = merged.pop().range.low
        merged.append(Regime(Range(low, high), best))
    return merged


def critical(found: Sequence[Sequence[Line]], where: Sequence[Range], margin: float) -> list[float]:
    """The bandwidths at which `preferred` may change, in ascending order: the ends of ranges, and where two lines cross, of which
    one may be longer by the margin."""
    ends = {end for range in where for end in (range.low, range.high)}
    every = [line for its in found for line in its]
    for fixed, wire in every:
        for factor in {1.0, 1 + margin}:
            for other_fixed, other_wire in every:
                rise, fall = factor * fixed - other_fixed, other_wire - factor * wire
                if rise and fall / rise > 0:
                    ends.add(fall / rise)
    return sorted(end for end in ends if 0 < end < inf)


def between(low: float, high: float) -> float:
    """A bandwidth inside a range."""
    if high == inf:
        return 2 * low if low > 0 else 1.0
    return (low + high) / 2
