"""Where the time of some work goes, by torch's profiler."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile

TIMES = 3  # one step alone varies too much


def shares(work: Callable[[], Any]) -> dict[str, float]:
    """The share of the processor's time in each of torch's operators, the largest first."""
    with without_standard_error(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(TIMES):
            work()
    times = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in profiler.key_averages()}
    total = sum(times.values())
    ordered = sorted(times.items(), key=lambda entry: -entry[1])
    return {name: time / total for name, time in ordered if time > 0}


@contextlib.contextmanager
def without_standard_error() -> Iterator[None]:
    """Discard what is written to standard error: the profiler's library writes lines there that no setting of it suppresses."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def sentence(whose: str, found: dict[str, float], most: int = 5) -> str:
    """The largest shares in words."""
    largest = ", ".join(f"{name} {100 * share:.0f} %" for name, share in list(found.items())[:most])
    return f"Time of {whose}: {largest}."
