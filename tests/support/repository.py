"""Where the repository is, and the names of what conf/ offers."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def configured(group: str) -> list[str]:
    """The names of the files in a group of conf/."""
    return sorted(path.stem for path in (REPOSITORY / "conf" / group).glob("*.yaml"))


FOREIGN_MODELS = ("any", "hf_decoder", "hf_encoder")  # built by others; tests/cli/test_any_model.py trains them
MODELS = [name for name in configured("model") if name not in FOREIGN_MODELS]  # of this package
