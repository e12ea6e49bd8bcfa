"""Optional packages, and the extra of this package that installs each (setup.cfg)."""

from pufferfish_bench.base.errors import InputError

EXTRAS = {"timm": "timm", "transformers": "hf"}  # package -> extra


def missing_package(package: str, needed_by: str) -> InputError:
    return InputError(f"{needed_by} needs {package}, which is not installed: pip install 'pufferfish-bench[{EXTRAS[package]}]'")
