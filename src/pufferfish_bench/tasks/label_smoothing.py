"""Label smoothing as the paper defines it."""

from pufferfish_bench.base.errors import InputError


def torch_label_smoothing(share: float, classes: int) -> float:
    """The value of torch's `label_smoothing` that gives the wrong classes `share` of the target in total.

    torch spreads its value over all classes, including the right one; the paper over the wrong ones only.
    """
    most = (classes - 1) / classes
    if not 0 <= share <= most:
        raise InputError(
            f"dataset.label_smoothing={share} must be between 0 and (classes - 1) / classes = {most:.3f} for {classes} classes"
        )
    return share * classes / (classes - 1) if share else 0.0
