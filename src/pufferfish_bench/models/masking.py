"""How a model that restores masked words wants them masked."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Masking:
    """A text model with this in its attribute `masking` is trained to restore masked words, not to predict the next one."""

    share: float  # of the words
    word: int  # the number that replaces a masked word
    seed: int
