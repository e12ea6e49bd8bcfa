"""Label smoothing as the paper means it."""

from pufferfish_bench.errors import InputError


def torchs_label_smoothing(share: float, classes: int) -> float:
    """The `label_smoothing` with which torch gives the wrong classes `share` of the target: it spreads it over all classes,
    the right one among them."""
    if not 0 <= share <= (classes - 1) / classes:
        most = f"(C - 1) / C = {(classes - 1) / classes:.3f}"
        raise InputError(f"dataset.label_smoothing={share} is outside 0..{most} for {classes} classes")
    return share * classes / (classes - 1) if share else 0.0
