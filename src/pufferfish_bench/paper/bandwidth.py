"""A claim over bandwidth: it is tested at each measured rate, and its verdict names the rates at which it holds.

Statistics, fixed before the runs: the claim at one rate is one test. All of them enter Holm's correction like any other claim of
the report, so a range is found with the same chance of a false claim as a single verdict. Between measured rates nothing is
tested. The paper measured one network, so a ratio that it prints is shown beside each of ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.units import show_bits
from pufferfish_bench.paper import verdicts
from pufferfish_bench.paper.cells import Cell, LabRun
from pufferfish_bench.paper.verdicts import Judgement

if TYPE_CHECKING:
    from pufferfish_bench.paper.outcome import Claim

MIXED = "different at different rates"
BANDWIDTH = "bandwidth"  # relations with `over: bandwidth` in conf/table
DECIDED = {verdicts.HOLDS: verdicts.HOLDS, verdicts.BETTER: verdicts.HOLDS, verdicts.OPPOSITE: verdicts.OPPOSITE}
FIRST = (verdicts.HOLDS, verdicts.OPPOSITE, verdicts.ALIKE)  # the order in a verdict; reasons for no test come after them


def by_rate(cells: Sequence[Cell]) -> dict[str, dict[float, LabRun]]:
    """The lab's cells of each line by bits per second, in ascending order; of several numbers of hosts that with most rates."""
    lab = [cell for cell in cells if isinstance(cell, LabRun) and cell.line]
    rates: dict[int, set[float]] = {}
    for cell in lab:
        rates.setdefault(cell.workers, set()).add(cell.bits)
    hosts = max(rates, key=lambda workers: (len(rates[workers]), -workers), default=None)
    found: dict[str, dict[float, LabRun]] = {}
    for cell in sorted((cell for cell in lab if cell.workers == hosts), key=lambda cell: cell.bits):
        found.setdefault(cell.line, {})[cell.bits] = cell
    return {line: found[line] for line in dict.fromkeys(cell.line for cell in lab) if line in found}


def at_each_rate(own: Mapping[str, Any], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """An entry of `relations`, between two lines, as one entry for each rate at which both are measured."""
    if own["over"] != BANDWIDTH:
        raise InputError(f"{own['claim']!r}: over: {own['over']} is not known; allowed: {BANDWIDTH}")
    lines = by_rate(cells)
    for line in (own["of"], own["than"]):
        if line not in lines:
            raise InputError(f"{own['claim']!r}: no cell of the lab has the line {line}; there are {', '.join(lines) or 'none'}")
    of, than = lines[own["of"]], lines[own["than"]]
    return [{**own, "of": of[bits].name, "than": than[bits].name, "bits": bits} for bits in of if bits in than]


@dataclass(frozen=True)
class OverBandwidth:
    """What our runs say about a claim at each rate, after the correction."""

    judgements: Mapping[float, Judgement]  # by bits per second, in ascending order

    @property
    def verdict(self) -> str:
        """The verdicts, each with the rates that it is true of; a range runs over neighbouring measured rates."""
        rates = list(self.judgements)
        kinds: dict[str, list[int]] = {}
        for place, judgement in enumerate(self.judgements.values()):
            kinds.setdefault(DECIDED.get(judgement.verdict, judgement.verdict), []).append(place)
        if len(kinds) == 1:
            everywhere = f"at all measured rates, {spans(rates, range(len(rates)))}" if len(rates) > 1 else show_bits(rates[0])
            return with_rates(next(iter(kinds)), everywhere)
        ordered = sorted(kinds, key=lambda kind: FIRST.index(kind) if kind in FIRST else len(FIRST))
        return "; ".join(with_rates(kind, spans(rates, kinds[kind])) for kind in ordered)

    @property
    def summary(self) -> Judgement:
        """One judgement for the list of all claims: the verdict over all rates, and the fewest seeds of a rate."""
        seeds = [judgement.seeds for judgement in self.judgements.values()]
        fewest = (min(of for of, _ in seeds), min(than for _, than in seeds))
        untested = all(judgement.verdict == verdicts.NOT_RUN for judgement in self.judgements.values())
        return Judgement(verdicts.NOT_RUN if untested else self.verdict, seeds=fewest)


def kind(verdict: str) -> str:
    """A verdict without its reason or rates, to count verdicts by; one that differs between rates is a kind of its own."""
    return MIXED if "); " in verdict else verdict.partition(" (")[0]


def with_rates(verdict: str, rates: str) -> str:
    """A verdict with the rates that it is true of, inside the brackets that it may have already."""
    return f"{verdict[:-1]}; {rates})" if verdict.endswith(")") else f"{verdict} ({rates})"


def spans(rates: Sequence[float], places: Sequence[int]) -> str:
    """The rates at these places, in ascending order; neighbours become one range: 100 Mbit/s to 1 Gbit/s and 10 Gbit/s."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    texts = [" to ".join(dict.fromkeys((show_bits(rates[run[0]]), show_bits(rates[run[-1]])))) for run in runs]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def collected(claims: Sequence["Claim"]) -> list[tuple["Claim", list["Claim"]]]:
    """Each claim of a table; one over bandwidth is one claim with the verdict over all rates, beside its tests at each rate."""
    found: dict[str | int, list[Claim]] = {}
    for place, claim in enumerate(claims):
        over = claim.relation.bits is not None
        found.setdefault(claim.relation.claim if over else place, []).append(claim)
    result = []
    for tests in found.values():
        if tests[0].relation.bits is None:
            result.append((tests[0], []))
            continue
        whole = OverBandwidth({test.relation.bits: test.judgement for test in tests})
        result.append((replace(tests[0], judgement=whole.summary, relation=replace(tests[0].relation, bits=None)), tests))
    return result
