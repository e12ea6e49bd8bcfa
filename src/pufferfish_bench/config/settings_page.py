"""docs/settings.md: every setting with its default and its meaning, from the comments in conf/.

python -m pufferfish_bench.config.settings_page > docs/settings.md
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pufferfish_bench.config.choices import choices
from pufferfish_bench.config.commented import CommentedFile, Setting, read_commented

PROFILES = ("paper", "cpu", "smoke")
LONGEST_DEFAULT = 60  # characters; longer ones are computed from other settings
INTRODUCTION = """\
<!-- Written by `make docs` from the files of conf/. Do not edit. -->
# Settings
Every setting can be given on the command line: `pufferfish-run model=vgg19 epochs=20 schedule.learning_rate=0.05`.
`GROUP=CHOICE` chooses a file of `conf/GROUP/`. `${other}` is the value of another setting, and `null` is none. The model brings
its [recipe](#recipes), which sets other values than the defaults below: `pufferfish-run model=vgg19 --help-settings` prints those
in use.
"""
RECIPES = """\
What a model is trained with, for each profile: `profile=paper` has the paper's settings, `profile=cpu` a miniature on real data,
`profile=smoke` synthetic data. An empty cell is the value of the recipe that it builds on, or the default. Which model has which
recipe: [conf/README.md](../conf/README.md).
"""
NOTES = {
    "method": "What they do: [methods.md](methods.md). A method of your own is one file: [extending.md](extending.md).",
    "reducer": "`method.warmup_reducer` takes the same choices: `reducer@method.warmup_reducer=powersgd`.",
    "tracker": "Several can be chosen: `tracker=[tensorboard,wandb]`. More in [tracking.md](tracking.md).",
}


def settings_page(conf: Path) -> str:
    """The page in Markdown."""
    groups = choices([conf])
    parts = [
        INTRODUCTION,
        *run_settings(read_commented(conf / "config.yaml")),
        *(line for group, names in groups.items() for line in group_section(conf / group, group, names)),
        "## Recipes",
        RECIPES,
        *(line for folder in sorted((conf / "recipe").iterdir()) for line in recipe_section(folder)),
        "## Settings of pufferfish-advise",
        "Besides those of the model and its recipe.",
        *tables(read_commented(conf / "advise.yaml").settings, "###"),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def run_settings(file: CommentedFile) -> Iterator[str]:
    yield "## Settings of a run"
    yield from tables(file.settings, "###")


def tables(settings: list[Setting], level: str, prefix: str = "") -> Iterator[str]:
    """A table for each section of a file."""
    for section in dict.fromkeys(setting.section for setting in settings):
        rows = [setting for setting in settings if setting.section == section and (setting.default or setting.meaning)]
        if not rows:
            continue
        if section:
            heading, _, more = section.partition(": ")
            yield f"{level} {heading}" + (f"\n{more[:1].upper()}{more[1:]}." if more else "")
        yield table(
            ("setting", "default", "meaning"),
            ((f"`{prefix}{setting.key}`", default(setting.default), prose(setting.meaning)) for setting in rows),
        )


def group_section(folder: Path, group: str, names: list[str]) -> Iterator[str]:
    """The choices of a group, then the settings of each. A file that only extends another has no table of its own."""
    files = {name: read_commented(folder / f"{name}.yaml") for name in names}
    yield f"## {group}"
    yield table((f"`{group}=`", ""), ((f"`{name}`", prose(file.head)) for name, file in files.items()))
    if group in NOTES:
        yield NOTES[group]
    shared = {path.stem: read_commented(path) for path in sorted(folder.glob("base/*.yaml"))}
    for base, file in shared.items():
        users = [f"`{name}`" for name in names if f"base/{base}" in files[name].bases]
        yield from choice_section(", ".join(users), group, file)
    for name, file in files.items():
        yield from choice_section(f"`{name}`", group, file)


def choice_section(title: str, group: str, file: CommentedFile) -> Iterator[str]:
    rows = list(tables(file.settings, "####", prefix_of(file, group)))
    if not rows:
        return
    beside = [f"`{base}`" for base in file.bases if not base.startswith("base/")]
    yield f"### {title}" + (f"\nLike {' and '.join(beside)}, but:" if beside else "")
    yield from rows


def prefix_of(file: CommentedFile, group: str) -> str:
    """What stands before the keys of a file on the command line."""
    return {None: f"{group.replace('/', '.')}.", "_global_": ""}.get(file.package, f"{file.package}.")


def recipe_section(folder: Path) -> Iterator[str]:
    """The values of each profile side by side; `common.yaml` and `miniature.yaml` hold what several of them share."""
    paths = [folder / f"{name}.yaml" for name in (*PROFILES, "common", "miniature")]
    files = {path.stem: read_commented(path) for path in paths if path.exists()}
    profiles = [name for name in PROFILES if name in files]
    values = {name: recipe_values(name, files) for name in profiles}
    keys = dict.fromkeys(key for name in profiles for key in values[name])
    yield f"### {folder.name}"
    yield "\n".join(f"- `{name}`: {prose(files[name].head)}" for name in profiles)
    rows = ((f"`{key}`", *(default(values[name].get(key, "")) for name in profiles)) for key in keys)
    yield table(("setting", *profiles), rows)


def recipe_values(name: str, files: dict[str, CommentedFile]) -> dict[str, str]:
    """The values that a file of a recipe sets, with those of the files of this recipe that it extends."""
    extended = [base for base in files[name].bases if base in files]
    inherited = {key: value for base in extended for key, value in recipe_values(base, files).items()}
    return inherited | {setting.key: setting.default for setting in files[name].settings if setting.default}


def prose(text: str) -> str:
    """The text with characters escaped that Markdown would take for markup, but for those in backquotes."""
    pieces = text.split("`")
    for i, piece in enumerate(pieces[::2]):
        pieces[2 * i] = re.sub(r"\*|\b_|_\b|(?<=\.)_", lambda found: f"\\{found[0]}", piece).replace("<", "&lt;")
    return "`".join(pieces)


def default(value: str) -> str:
    if not value:
        return ""
    return f"`{value}`" if len(value) <= LONGEST_DEFAULT else "computed"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    from pufferfish_bench.config.settings import config_dir

    print(settings_page(Path(config_dir())), end="")
