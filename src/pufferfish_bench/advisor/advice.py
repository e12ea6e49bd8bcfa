"""From measurements and a network to forecasts and recommendations, as plain data for a JSON file. Pure; needs no torch."""

import shlex
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from pufferfish_bench.advisor import decisions
from pufferfish_bench.advisor.decisions import LEAST_GAIN, Plan, Recommendation
from pufferfish_bench.advisor.networks import Network
from pufferfish_bench.distributed import forecast
from pufferfish_bench.distributed.forecast import Method

UNKNOWN = (
    "accuracy: no method is trained here, and a low rank, PowerSGD, Signum or top-k may cost accuracy (run=DIR of a finished "
    "vanilla run shows the stable ranks of its layers)",
    "reading data, other traffic on the network, and waiting for slower workers (known only if several processes measured)",
    "memory of activations, and of buffers that a step allocates and frees",
)


def advise(measured: Mapping[str, Any], network: Network, workers: Sequence[int], words: Sequence[str]) -> dict[str, Any]:
    """The measurements with a forecast for each number of workers. `words`: what of the user's command line a run understands."""
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
        "recommendations": [recommendation(each, measured, methods[0], network, words) for each in found],
        "unknown": list(UNKNOWN),
    }


def recommendation(
    found: Recommendation, measured: Mapping[str, Any], vanilla: Method, network: Network, words: Sequence[str]
) -> dict[str, Any]:
    """A recommendation with the settings that train with it: each worker has the batch that was measured."""
    doubt = "from two rounds only, no basis for a decision: " if measured["rounds"] <= decisions.FEW_ROUNDS else ""
    settings = [*words, f"batch_size={measured['batch_size']}", *(found.method or vanilla).overrides]
    return {
        "workers": found.workers,
        "global_batch": found.workers * measured["batch_size"],
        "method": found.method.label if found.method else None,
        "speedup": found.speedup,
        "whole_run": found.whole_run,
        "sentence": doubt + found.sentence,
        "regimes": [
            {"above": bits(its.range.low), "below": bits(its.range.high), "method": its.method and its.method.label}
            for its in found.regimes
        ],
        "overrides": settings,
        "machines": decisions.machines(found.workers, network.gpus),
        "command": decisions.command(settings, found.workers, shlex.quote, network.gpus),
    }


def methods_in(measured: Mapping[str, Any]) -> list[Method]:
    return [Method.from_data(data) for data in measured["methods"]]


def rows(methods: Sequence[Method], workers: int, network: Network, plan: Plan) -> list[dict[str, Any]]:
    """The forecast of every method, compared with the first."""
    plain = forecast.step_seconds(methods[0], workers, network.links)
    found = []
    for run in forecast.trainings(methods, plan.warmup_share):
        method = run.method
        step = forecast.step_seconds(method, workers, network.links)
        where = forecast.pays(run, methods[0], workers, network.links, LEAST_GAIN)
        found.append({
            "workers": workers, "method": method.label, "seconds": step, "speedup": plain / step,
            "whole_run": forecast.speedup(run, methods[0], workers, network.links), "bytes": method.bytes_sent,
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
