"""What to recommend: layers to factorise from their times, a method from its forecast. Pure functions; need no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from pufferfish_bench.distributed import forecast, units
from pufferfish_bench.distributed.forecast import Method, Regime
from pufferfish_bench.records.measured import Link

LEAST_GAIN = 0.02  # a method pays if its step is shorter by more than this
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

    If not, the words name the highest of the lower ranks that did.
    """
    if rank is None:
        return Decision(False, "leave: not chosen by model.low_rank")
    timing = timings.get(rank)
    if timing is None:
        return Decision(False, "leave: not used in the forward pass")
    if timing.faster:
        return Decision(True, f"factor at rank {rank}")
    words = "slower" if timing.slower else "no faster"
    lower = max((other for other, its in timings.items() if other < rank and its.faster), default=None)
    return Decision(False, f"leave: {words}" if lower is None else f"leave at rank {rank}: {words}; rank {lower} is faster")


def recommended_ranks(ranks: Mapping[str, int], timings: Mapping[str, Mapping[int, Timing]]) -> dict[str, int]:
    """The layers to factorise, of those that the settings factorise at `ranks`."""
    return {name: rank for name, rank in ranks.items() if decide(rank, timings.get(name, {})).factor}


@dataclass(frozen=True)
class Plan:
    """The epochs of a run, and how many of them Pufferfish trains the full-rank network."""

    epochs: int = 1
    warmup_epochs: int = 0


@dataclass(frozen=True)
class Recommendation:
    """The fastest method for a number of workers on a network; None: none pays."""

    workers: int
    method: Method | None
    speedup: float  # over vanilla training, of a step
    regimes: Sequence[Regime]
    sentence: str


def recommend(
    methods: Sequence[Method], workers: int, links: Mapping[str, Link], margin: float = LEAST_GAIN, plan: Plan | None = None
) -> Recommendation:
    """`methods` begins with vanilla training, with which the others are compared.

    Of methods that are equally fast within the margin, the one whose reducer comes first counts, full-rank before low-rank.
    A method that needs another optimizer is left out: whether that trains as well is not for a timer to say.
    """
    baseline, *rest = methods
    plan = plan or Plan()
    reducers = list(dict.fromkeys(method.reducer for method in methods))
    others = sorted((each for each in rest if not each.other_optimizer), key=lambda method: reducers.index(method.reducer))
    plain = forecast.step_seconds(baseline, workers, links)
    times = {method.label: forecast.step_seconds(method, workers, links) for method in others}
    paying = [method for method in others if (1 + max(margin, method.noise)) * times[method.label] < plain]
    best = forecast.preferred(paying, times, margin)
    found = forecast.regimes(others, baseline, workers, links, margin)
    speedup = plain / times[best.label] if best else 1.0
    here = f"{at_rate(links['allreduce'].bandwidth)} {workers:,} workers: "
    here += f"{best.label}, {gain(best, speedup, whole_run(best, methods, workers, links, plan), plan)}" if best else "none pays"
    return Recommendation(workers, best, speedup, found, sentence(here, best, found, links["allreduce"].bandwidth))


def whole_run(method: Method, methods: Sequence[Method], workers: int, links: Mapping[str, Link], plan: Plan) -> float:
    """The speed-up of a whole run over vanilla training, the first of `methods`: the warm-up of Pufferfish is full-rank."""
    plain, own = (forecast.step_seconds(each, workers, links) for each in (methods[0], method))
    if method.model != PUFFERFISH or not plan.warmup_epochs:
        return plain / own
    [dense] = [each for each in methods if each.model != PUFFERFISH and each.reducer == method.reducer]
    warmup = plan.warmup_epochs * forecast.step_seconds(dense, workers, links)
    return plan.epochs * plain / (warmup + (plan.epochs - plan.warmup_epochs) * own)


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
        return f"add {method.reducer}"
    return method.label


def command(words: Sequence[str], workers: int, quote: Callable[[str], str]) -> str:
    """The command line that trains with these settings, with all workers on one host."""
    return " ".join([f"torchrun --nproc-per-node {workers} -m pufferfish_bench", *map(quote, words)])
