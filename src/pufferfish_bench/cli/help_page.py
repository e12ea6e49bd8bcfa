"""What --help prints: one style for all commands, as wide as the terminal, and at most 100 columns."""

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

WIDEST, NARROWEST = 100, 60
NAMES = 24  # columns for the longest name that its explanation stands beside
ALWAYS = {"-h, --help": "show this page", "--version": "print the version"}


@dataclass(frozen=True)
class Page:
    """The help of a command. In `examples`, each command has a remark; in `sections`, each name has an explanation."""

    program: str
    usage: str
    what: str  # paragraphs are separated by an empty line
    examples: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by heading
    foot: str = ""

    def text(self) -> str:
        blocks = [f"Usage: {self.program} {self.usage}".rstrip(), paragraphs(self.what)]
        if self.examples:
            blocks.append(f"Examples:\n{in_examples(self.examples)}")
        blocks += [f"{paragraphs(heading)}:\n{listed(names)}" for heading, names in self.sections.items() if names]
        blocks += [paragraphs(self.foot)] if self.foot else []
        return "\n\n".join(blocks) + "\n"


def width() -> int:
    """Columns of the terminal, within limits."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns))


def paragraphs(text: str) -> str:
    return "\n\n".join(textwrap.fill(part, width(), break_on_hyphens=False) for part in text.split("\n\n"))


def in_examples(examples: Mapping[str, str]) -> str:
    """Commands that can be pasted, with their remarks beside them, or above those that are too long."""
    widest = width()
    room = [len(command) for command, remark in examples.items() if len(f"  {command}  # {remark}") <= widest]
    lines = []
    for command, remark in examples.items():
        beside = [f"  {command:<{column}}  # {remark}" for column in (max(room, default=0), 0)]
        fitting = [line for line in beside if len(line) <= widest]
        lines.append(fitting[0] if fitting else f"  # {remark}\n  {command}")
    return "\n".join(lines)


def listed(names: Mapping[str, str]) -> str:
    """Names with their explanations in a column beside them, below those that are too long."""
    column = max((len(name) for name in names if len(name) <= NAMES), default=NAMES)
    lines = []
    for name, words in names.items():
        indent = " " * (column + 4)
        text = textwrap.wrap(words, width() - len(indent), break_on_hyphens=False, break_long_words=False) or [""]
        beside = len(name) <= column
        first = [f"  {name:<{column}}  {text[0]}".rstrip()] if beside else [f"  {name}", indent + text[0]]
        lines += [*first, *(indent + line for line in text[1:])]
    return "\n".join(lines)
