"""Bandwidths and times as people write them, both ways."""

import re

from pufferfish_bench.errors import InputError

BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}  # a second, as tc writes them
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def bandwidth(words: str) -> float:
    """Bytes a second, of 10gbit, 100mbit or 1.5Gbit/s."""
    found = quantity(words.lower().removesuffix("/s"), BITS)
    if not found:
        raise InputError(f"{words!r} is no bandwidth: give a number above 0 and a unit ({', '.join(BITS)}), as in 10gbit")
    return found / 8


def seconds(words: str) -> float:
    """Seconds, of 50us or 1.5ms."""
    found = quantity(words.lower(), SECONDS)
    if found is None:
        raise InputError(f"{words!r} is no time: give a number and a unit ({', '.join(SECONDS)}), as in 50us")
    return found


def counts(words: str) -> list[int]:
    """Rising numbers, of 2,4,8."""
    parts = [part.strip() for part in words.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"{words!r} is no list of worker counts: give whole numbers above 0, as in 2,4,8,16")
    return sorted({int(part) for part in parts})


def quantity(words: str, units: dict[str, float]) -> float | None:
    """The number times its unit, or None if the words do not say one."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-z]+)", words.strip(), re.ASCII)
    return float(match[1]) * units[match[2]] if match and match[2] in units else None


def show_bits(bits: float) -> str:
    """A rate in bits a second, to three figures."""
    power = 0
    while bits >= 999.5 and power < 4:
        bits, power = bits / 1000, power + 1
    return f"{bits:.3g} {('bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s')[power]}"


def show_seconds(amount: float) -> str:
    """A time to three figures, in the unit that suits it."""
    unit = next((unit for unit in ("s", "ms", "us") if amount >= 0.9995 * SECONDS[unit]), "s")
    return f"{amount:,.0f} s" if amount >= 999.5 else f"{amount / SECONDS[unit]:.3g} {unit}"
