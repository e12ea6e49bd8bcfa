"""The layers that are not factorised, in words: one line for each reason."""

import re
from collections.abc import Iterator, Mapping

# what is different from layer to layer follows a colon or is in brackets at the end
DETAIL = re.compile(r"(: | \().*")


def sentences(left: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each reason and the layers that it applies to; "" is the model itself.

    Layers whose reasons differ only in numbers share a sentence, without the numbers.
    """
    alike: dict[str, dict[str, str]] = {}
    for layer, reason in left.items():
        alike.setdefault(DETAIL.sub("", reason), {})[layer or "the model itself"] = reason
    for general, reasons in alike.items():
        named, different = ", ".join(reasons), set(reasons.values())
        why = different.pop() if len(different) == 1 else general
        yield f"not factorised: {named}: {why}" if len(reasons) == 1 else f"not factorised: {len(reasons)} layers: {why}: {named}"
