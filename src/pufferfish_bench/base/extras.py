"""Optional packages, and the extra of this package that installs each (setup.cfg)."""

from importlib.util import find_spec

from pufferfish_bench.base.errors import InputError

EXTRAS = {"timm": "timm", "transformers": "hf", "wandb": "wandb", "mlflow": "mlflow"}  # package -> extra


def missing_package(package: str, needed_by: str) -> InputError:
    return InputError(f"{needed_by} needs {package}, which is not installed: pip install 'pufferfish-bench[{EXTRAS[package]}]'")


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a folder of its name in the current directory, such as ./wandb, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None
