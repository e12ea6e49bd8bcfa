"""Reads a config file as text: what it says at its head, and each setting with its default and its comment.

A YAML parser drops comments, and the comments explain the settings. Imports neither Hydra nor OmegaConf.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HIDDEN = ("_target_", "_partial_", "defaults", "hydra", "input")  # not settings that a user changes
LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w.]*|\"[^\"]+\"):(?P<rest>.*)")
COMMENT = re.compile(r"(?:^|\s)#(?: (.*)|$)")


@dataclass
class Setting:
    key: str  # dotted, as it stands in the file
    default: str  # as it stands in the file; "" where settings follow below
    meaning: str = ""
    section: str = ""  # the heading above it


@dataclass
class CommentedFile:
    head: str = ""
    package: str | None = None  # where its settings belong, if the file says so
    bases: list[str] = field(default_factory=list)  # files of the same folder that it extends
    settings: list[Setting] = field(default_factory=list)


def read_commented(path: Path) -> CommentedFile:
    """The file as text. Nested lists are left out: they hold constructors and addresses."""
    lines = path.read_text().splitlines()
    begin = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    commands = [line.startswith("#  ") for line in lines[:begin]]  # they are indented
    heads = [f"`{line[1:].strip()}`" if command else line[1:].strip() for line, command in zip(lines, commands, strict=False)]
    packages = [line.removeprefix("@package ") for line in heads if line.startswith("@package ")]
    found = CommentedFile(
        head=" ".join(line for line in heads if not line.startswith("@package ")),
        package=packages[0] if packages else None,
        bases=list(bases(lines[begin:])),
    )
    section = ""
    above: list[tuple[int, str]] = []  # the keys around the current line, with their indentation
    for line in lines[begin:]:
        if line.startswith("#"):
            section = line[1:].strip()
            continue
        match = LINE.fullmatch(line)
        if not match:
            comment = COMMENT.search(line)
            if comment and line.lstrip().startswith("#") and found.settings:  # the comment goes on
                found.settings[-1].meaning += f" {comment[1]}"
            continue
        indent = len(match["indent"])
        above = [(depth, key) for depth, key in above if depth < indent] + [(indent, match["key"])]
        keys = [key for _, key in above]
        if not {*keys} & {*HIDDEN}:
            comment = COMMENT.search(match["rest"])
            default = match["rest"][: comment.start()] if comment else match["rest"]
            found.settings.append(Setting(".".join(keys), default.strip(), comment[1] if comment else "", section))
    return found


def bases(lines: list[str]) -> Iterator[str]:
    """The names in a defaults list that stand for files of the same folder."""
    inside = False
    for line in lines:
        if not line.startswith((" ", "-")):
            inside = line.startswith("defaults:")
        elif inside and (match := re.fullmatch(r"\s*- ([\w/]+)(@_here_)?(\s+#.*)?", line)) and match[1] != "_self_":
            yield match[1]
