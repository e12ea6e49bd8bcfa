"""What to recommend: layers to factorise from their times, a method from its forecast. Pure functions; need no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pufferfish_bench.distributed import forecast, units
from pufferfish_bench.distributed.forecast import Method, Regime
from pufferfish_bench.records.measured import Link

LEAST_GAIN = 0.02  # a method pays if its step is shorter by more than this
LEAST_NOISE = 0.02  # a difference between two forms of a layer below 2 % is never more than noise
VANILLA, PUFFERFISH = "vanilla", "Pufferfish"


@dataclass(frozen=True)
class Timing:
    """The time of one form of a layer, and its ratio to the dense form."""

    seconds: float
    ratio: float  # to dense: the median over rounds
    noise: float  # two standard errors of the ratio, at least LEAST_NOISE

    @property
    def faster(self) -> bool:
        return self.ratio + self.noise < 1

    @property
    def slower(self) -> bool:
        return self.ratio - self.noise > 1


@dataclass(frozen=True)
class Decision:
    """Whether to factorise a layer."""

    factor: bool
    words: str


def decide(rank: int | None, timing: Timing | None) -> Decision:
    """A layer is factorised at the rank that the settings give it if that measured faster than dense by more than noise."""
    if rank is None:
        return Decision(False, "leave: kept by model.low_rank")
    if timing is None:
        return Decision(False, "leave: not used in the forward pass")
    if timing.faster:
        return Decision(True, f"factor at rank {rank}")
    return Decision(False, "leave: slower" if timing.slower else "leave: no faster")


def recommended_ranks(ranks: Mapping[str, int], timings: Mapping[str, Mapping[int, Timing]]) -> dict[str, int]:
    """The layers to factorise, of those that the settings factorise at `ranks`."""
    return {name: rank for name, rank in ranks.items() if decide(rank, timings.get(name, {}).get(rank)).factor}


@dataclass(frozen=True)
class Recommendation:
    """The fastest method for a number of workers on a network; None: none pays."""

    workers: int
    method: Method | None
    speedup: float  # over vanilla training
    sentence: str


def recommend(methods: Sequence[Method], workers: int, links: Mapping[str, Link], margin: float = LEAST_GAIN) -> Recommendation:
    """`methods` begins with vanilla training, with which the others are compared.

    Of methods that are equally fast within the margin, the one whose reducer comes first counts, full-rank before low-rank.
    """
    baseline, *rest = methods
    reducers = list(dict.fromkeys(method.reducer for method in methods))
    others = sorted(rest, key=lambda method: reducers.index(method.reducer))
    plain = forecast.step_seconds(baseline, workers, links)
    times = {method.label: forecast.step_seconds(method, workers, links) for method in others}
    paying = [method for method in others if (1 + margin) * times[method.label] < plain]
    best = forecast.preferred(paying, times, margin)
    link = links["allreduce"]
    found = forecast.regimes(others, baseline, workers, links, margin)
    speedup = plain / times[best.label] if best else 1.0
    return Recommendation(workers, best, speedup, sentence(best, speedup, found, workers, link.bandwidth))


def sentence(best: Method | None, speedup: float, found: Sequence[Regime], workers: int, bandwidth: float) -> str:
    """What to use here, on a slower network, and on a faster one."""
    here = f"at {units.show_bits(8 * bandwidth)} and {workers:,} workers: "
    here += f"{best.label}, {speedup:.1f}x" if best else "none pays"
    if all(regime.method is None for regime in found):
        return f"{here}, at no bandwidth"
    parts = [here]
    below = [regime for regime in found if regime.range.high <= bandwidth and differs(regime, best)]
    if below:
        parts.append(f"below {units.show_bits(8 * below[-1].range.high)} {added(below[-1].method, best)}")
    above = [regime for regime in found if regime.range.low >= bandwidth]
    silent = next((regime for regime in above if regime.method is None), None)
    if silent:
        parts.append(f"above {units.show_bits(8 * silent.range.low)} none pays")
    elif other := next((regime for regime in above if differs(regime, best)), None):
        parts.append(f"above {units.show_bits(8 * other.range.low)} {added(other.method, best)}")
    return "; ".join(parts)


def differs(regime: Regime, best: Method | None) -> bool:
    return (regime.method.label if regime.method else None) != (best.label if best else None)


def added(method: Method | None, best: Method | None) -> str:
    """A method named by what it adds to the best one, if it only adds a reducer."""
    if method is None:
        return "none pays"
    if best and method.model == best.model == PUFFERFISH and best.label == PUFFERFISH:
        return f"add {method.reducer}"
    return method.label


def command(overrides: Sequence[str], method: Method, quote: Callable[[str], str]) -> str:
    """The command line that trains with a method."""
    return " ".join(["pufferfish-run", *(quote(word) for word in (*overrides, *method.overrides))])
