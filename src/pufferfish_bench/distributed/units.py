"""Parse and print network rates and times."""

import re

from pufferfish_bench.base.errors import InputError

BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}  # per second, in the spelling of tc
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def bits_per_second(text: str) -> float:
    """Bits per second from text such as 100mbit or 1.5Gbit/s."""
    found = quantity(text.lower().removesuffix("/s"), BITS)
    if not found:
        raise InputError(f"{text!r} is not a rate: give a number above 0 and a unit ({', '.join(BITS)}), for example 100mbit")
    return found


def bandwidth(text: str) -> float:
    """Bytes per second from text such as 10gbit."""
    return bits_per_second(text) / 8


def seconds(text: str) -> float:
    """Seconds from text such as 50us or 1.5ms."""
    found = quantity(text.lower(), SECONDS)
    if found is None:
        raise InputError(f"{text!r} is not a time: give a number and a unit ({', '.join(SECONDS)}), for example 50us")
    return found


def counts(text: str) -> list[int]:
    """Worker counts in rising order from text such as 2,4,8."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"{text!r} is not a list of worker counts: give whole numbers above 0, for example 2,4,8,16")
    return sorted({int(part) for part in parts})


def quantity(text: str, units: dict[str, float]) -> float | None:
    """A number times its unit; None if the text is not a number and a known unit."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-z]+)", text.strip(), re.ASCII)
    return float(match[1]) * units[match[2]] if match and match[2] in units else None


def show_bits(bits: float) -> str:
    """A rate in bits per second with three significant digits."""
    power = 0
    while bits >= 999.5 and power < 4:
        bits, power = bits / 1000, power + 1
    return f"{bits:.3g} {('bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s')[power]}"


def show_seconds(amount: float) -> str:
    """A time with three significant digits, in s, ms or us."""
    unit = next((unit for unit in ("s", "ms", "us") if amount >= 0.9995 * SECONDS[unit]), "s")
    return f"{amount:,.0f} s" if amount >= 999.5 else f"{amount / SECONDS[unit]:.3g} {unit}"
