"""Where the time of some work goes, by torch's profiler."""

from collections.abc import Callable
from typing import Any

from torch.autograd.profiler import profile


def shares(work: Callable[[], Any]) -> dict[str, float]:
    """The share of the processor's time in each of torch's operators, the largest first."""
    with profile(use_kineto=False) as profiler:  # Kineto writes lines of its own to standard error
        work()
    times = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in profiler.key_averages()}
    total = sum(times.values())
    ordered = sorted(times.items(), key=lambda entry: -entry[1])
    return {name: time / total for name, time in ordered if time > 0}


def sentence(whose: str, found: dict[str, float], most: int = 5) -> str:
    """The largest shares in words."""
    largest = ", ".join(f"{name} {100 * share:.0f} %" for name, share in list(found.items())[:most])
    return f"Time of {whose}: {largest}."
