"""From measurements and a network to forecasts and recommendations, as plain data for a JSON file. Pure; needs no torch."""

import shlex
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from pufferfish_bench.advisor import decisions
from pufferfish_bench.advisor.decisions import LEAST_GAIN, Plan
from pufferfish_bench.advisor.networks import Network
from pufferfish_bench.distributed import forecast
from pufferfish_bench.distributed.forecast import Method

UNKNOWN = (
    "accuracy: no method is trained here, and a low rank, PowerSGD, Signum or top-k may cost accuracy",
    "reading data, other traffic on the network, and waiting for slower workers (known only if several processes measured)",
    "memory of activations, and of buffers that a step allocates and frees",
)


def advise(measured: Mapping[str, Any], network: Network, workers: Sequence[int], words: Sequence[str]) -> dict[str, Any]:
    """The measurements with a forecast for each number of workers. `words`: what of the user's command line a run understands."""
    doubt = "from two rounds only, no basis for a decision: " if measured["rounds"] <= decisions.FEW_ROUNDS else ""
    methods = methods_in(measured)
    allowed = [method for method in methods if not measured["includes_slower_layers"] or method.model != decisions.PUFFERFISH]
    plan = Plan(measured["epochs"], measured["warmup_epochs"])
    found = [decisions.recommend(allowed, count, network.links, plan=plan) for count in workers]
    return dict(measured) | {
        "network": {
            "name": network.name,
            "source": network.source,
            # without a limit of bandwidth: null
            "links": {
                kind: {"latency": link.latency, "bandwidth": limited(link.bandwidth)} for kind, link in network.links.items()
            },
        },
        "workers": list(workers),
        "margin": LEAST_GAIN,
        "forecasts": [row for count in workers for row in rows(methods, count, network, plan)],
        "recommendations": [
            {
                "workers": each.workers,
                "method": each.method.label if each.method else None,
                "speedup": each.speedup,
                "sentence": doubt + each.sentence,
                "regimes": [
                    {"above": bits(its.range.low), "below": bits(its.range.high), "method": its.method and its.method.label}
                    for its in each.regimes
                ],
                "overrides": [*words, *(each.method or methods[0]).overrides],
                "command": decisions.command([*words, *(each.method or methods[0]).overrides], each.workers, shlex.quote),
            }
            for each in found
        ],
        "unknown": list(UNKNOWN),
    }


def methods_in(measured: Mapping[str, Any]) -> list[Method]:
    return [Method.from_data(data) for data in measured["methods"]]


def rows(methods: Sequence[Method], workers: int, network: Network, plan: Plan) -> list[dict[str, Any]]:
    """The forecast of every method, compared with the first."""
    plain = forecast.step_seconds(methods[0], workers, network.links)
    found = []
    for method in methods:
        step = forecast.step_seconds(method, workers, network.links)
        where = forecast.pays(method, methods[0], workers, network.links, LEAST_GAIN)
        found.append({
            "workers": workers, "method": method.label, "seconds": step, "speedup": plain / step,
            "whole_run": decisions.whole_run(method, methods, workers, network.links, plan), "bytes": method.bytes_sent,
            "memory": method.memory, "estimate": method.overlapped,
            "other_optimizer": method.other_optimizer, "pays": where is not None,
            "pays_above": bits(where.low) if where else None, "pays_below": bits(where.high) if where else None,
        })  # fmt: skip
    return found


def limited(bandwidth: float) -> float | None:
    return bandwidth if bandwidth < inf else None


def bits(bandwidth: float) -> float | None:
    """An end of a range in bits per second; None: the range has no such limit."""
    return 8 * bandwidth if 0 < bandwidth < inf else None
