"""What to recommend: layers to factorise from their times, a method from its forecast. Pure functions; need no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from pufferfish_bench.distributed import forecast, units
from pufferfish_bench.distributed.forecast import Method, Regime
from pufferfish_bench.records.measured import Link

LEAST_GAIN = 0.02  # a method pays if a whole run with it is faster by more than this
FEW_ROUNDS = 2  # of quick=true: no basis for a decision
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


def decide(rank: int | None, timings: Mapping[int, Timing]) -> Decision:
    """A layer is factorised at the rank that the settings give it if that measured faster than dense by more than noise.

    If not, the words name the highest of the lower ranks that did. Without a rank, the settings keep the layer.
    """
    if not timings:
        return Decision(False, "leave: not used in the forward pass")
    if rank is None:
        return Decision(False, f"leave: kept by the settings ({compared(timings)})")
    timing = timings.get(rank)
    if timing is None:
        return Decision(False, f"leave: not measured at rank {rank}")
    if timing.faster:
        return Decision(True, f"factor at rank {rank}")
    words = "slower" if timing.slower else "no faster"
    lower = max((other for other, its in timings.items() if other < rank and its.faster), default=None)
    return Decision(False, f"leave: {words}" if lower is None else f"leave at rank {rank}: {words}; rank {lower} is faster")


def compared(timings: Mapping[int, Timing]) -> str:
    """How a layer that is kept measured at all of its ranks."""
    faster = [rank for rank, timing in timings.items() if timing.faster]
    if faster:
        return f"measured faster at rank {max(faster)}"
    return "measured slower" if all(timing.slower for timing in timings.values()) else "measured no faster"


def recommended_ranks(ranks: Mapping[str, int], timings: Mapping[str, Mapping[int, Timing]]) -> dict[str, int]:
    """The layers to factorise, of those that the settings factorise at `ranks`."""
    return {name: rank for name, rank in ranks.items() if decide(rank, timings.get(name, {})).factor}


@dataclass(frozen=True)
class Plan:
    """The epochs of a run, and how many of them Pufferfish trains the full-rank network."""

    epochs: int = 1
    warmup_epochs: int = 0

    @property
    def warmup_share(self) -> float:
        """The fraction of the epochs that are warm-up."""
        return self.warmup_epochs / self.epochs


@dataclass(frozen=True)
class Recommendation:
    """The fastest method for a number of workers on a network; None: none pays."""

    workers: int
    method: Method | None
    speedup: float  # over vanilla training, of a step
    whole_run: float  # the same, of a whole run, by which methods are compared
    regimes: Sequence[Regime]
    sentence: str


def recommend(
    methods: Sequence[Method], workers: int, links: Mapping[str, Link], margin: float = LEAST_GAIN, plan: Plan | None = None
) -> Recommendation:
    """`methods` begins with vanilla training, with which the others are compared by the time of a whole run.

    Of methods that are equally fast within the margin, the one whose reducer comes first counts, full-rank before low-rank.
    A method that needs another optimizer is left out: whether that trains as well is not for a timer to say.
    """
    baseline, plan = methods[0], plan or Plan()
    reducers = list(dict.fromkeys(method.reducer for method in methods))
    runs = [run for run in forecast.trainings(methods, plan.warmup_share)[1:] if not run.method.other_optimizer]
    others = sorted(runs, key=lambda run: reducers.index(run.method.reducer))
    plain = forecast.step_seconds(baseline, workers, links)
    times = {run.method.label: forecast.mean_seconds(run, workers, links) for run in others}
    paying = [run.method for run in others if (1 + max(margin, run.method.noise)) * times[run.method.label] < plain]
    best = forecast.preferred(paying, times, margin)
    found = forecast.regimes(others, baseline, workers, links, margin)
    speedup = plain / forecast.step_seconds(best, workers, links) if best else 1.0
    whole = plain / times[best.label] if best else 1.0
    here = f"{at_rate(links['allreduce'].bandwidth)} {workers:,} workers: "
    here += f"{best.label}, {gain(best, speedup, whole, plan)}{accuracy(best)}" if best else "none pays"
    return Recommendation(workers, best, speedup, whole, found, sentence(here, best, found, links["allreduce"].bandwidth))


def accuracy(method: Method) -> str:
    return ", which may cost accuracy" if method.may_cost_accuracy else ""


def gain(best: Method, speedup: float, whole: float, plan: Plan) -> str:
    """The speed-up of a method in words; with a warm-up, also that of the whole run."""
    if best.model != PUFFERFISH or not plan.warmup_epochs:
        return show_speedup(speedup)
    epochs = f"{plan.warmup_epochs} warm-up epoch{'s' * (plan.warmup_epochs > 1)}"
    return f"{show_speedup(speedup)} a step ({show_speedup(whole)} for the whole run with its {epochs})"


def show_speedup(factor: float) -> str:
    """A speed-up, with more digits where it is close to none."""
    return f"{factor:.2f}x" if factor < 1.1 else f"{factor:.1f}x"


def at_rate(bandwidth: float) -> str:
    return f"at {units.show_bits(8 * bandwidth)} and" if bandwidth < inf else "without a limit of bandwidth and with"


def sentence(here: str, best: Method | None, found: Sequence[Regime], bandwidth: float) -> str:
    """What to use here, on a slower network, and on a faster one."""
    if all(regime.method is None for regime in found):
        return f"{here} at any bandwidth"
    below = [regime for regime in found if regime.range.high <= bandwidth and differs(regime, best)][-1:]
    above = [regime for regime in found if regime.range.low >= bandwidth and differs(regime, best)]
    named = [*below, *above[:1]]
    if best:  # also from where on no method pays, if another one comes before
        named += [regime for regime in above[1:] if regime.method is None][:1]
    return "; ".join([here, *(f"{between(regime)} {added(regime.method, best)}" for regime in named)])


def between(regime: Regime) -> str:
    low, high = (units.show_bits(8 * end) for end in (regime.range.low, regime.range.high))
    if regime.range.low <= 0:
        return f"below {high}"
    return f"above {low}" if regime.range.high == inf else f"from {low} to {high}"


def differs(regime: Regime, best: Method | None) -> bool:
    return (regime.method.label if regime.method else None) != (best.label if best else None)


def added(method: Method | None, best: Method | None) -> str:
    """A method named by what it adds to the best one, if it only adds a reducer."""
    if method is None:
        return "none pays"
    if best and method.model == best.model == PUFFERFISH and best.label == PUFFERFISH:
        return f"add {method.reducer}{accuracy(method)}"
    return f"{method.label}{accuracy(method)}"


def machines(workers: int, gpus: int | None) -> int:
    """The machines of `gpus` workers each; 1 if that number is not known or does not divide the workers."""
    return workers // gpus if gpus and workers % gpus == 0 else 1


def command(words: Sequence[str], workers: int, quote: Callable[[str], str], gpus: int | None = None) -> str:
    """The command line that trains with these settings: on machines of `gpus` workers each, or with all workers on one."""
    count = machines(workers, gpus)
    several = f"--nnodes {count} --rdzv-id pufferfish --rdzv-backend c10d --rdzv-endpoint $MASTER:29500 " if count > 1 else ""
    return " ".join([f"torchrun {several}--nproc-per-node {workers // count} -m pufferfish_bench", *map(quote, words)])
