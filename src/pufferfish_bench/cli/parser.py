"""Reads the words of a command line with argparse: help pages in the project's style, and errors in one sentence."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.cli.commands import program
from pufferfish_bench.cli.help_page import ALWAYS, Page
from pufferfish_bench.cli.messages import VERSION

Subcommands = argparse._SubParsersAction  # argparse has no public name for it


class Parser(argparse.ArgumentParser):
    """The arguments of a command. An error is an InputError, so `parse_args` belongs inside `error_messages()`."""

    def __init__(self, name: str = "", what: str = "", *, examples: Mapping[str, str] | None = None, **further: Any):
        prog = further.pop("prog", "") or program(name)
        super().__init__(prog=prog, description=what, add_help=False, allow_abbrev=False, **further)
        self.add_argument("-h", "--help", action="help", help=ALWAYS["-h, --help"])
        self.add_argument("--version", action="version", version=VERSION, help=ALWAYS["--version"])
        old_name = re.compile(rf"\bpufferfish-{name}(?= |$)")
        self.examples = {old_name.sub(prog, line): remark for line, remark in (examples or {}).items()}

    def format_help(self) -> str:
        named = [action for action in self._actions if action.option_strings]
        placed = [action for action in self._actions if not action.option_strings]
        last = [action for action in named if action.dest in ("help", "version")]
        choices = {name: words for action in placed if isinstance(action, Subcommands) for name, words in summaries(action)}
        arguments = {arrangement(action): self.explained(action) for action in placed if not isinstance(action, Subcommands)}
        options = {invocation(action): self.explained(action) for action in named if action not in last}
        options |= {invocation(action): self.explained(action) for action in last}
        usage = self.usage or " ".join([*map(arrangement, placed), *["[OPTION ...]"] * (len(named) > len(last))])
        sections = {"Arguments": arguments, "Choices": choices, "Options": options}
        return Page(self.prog, usage, self.description or "", self.examples, sections).text()

    def explained(self, action: argparse.Action) -> str:
        return (action.help or "") % (vars(action) | {"prog": self.prog})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse an unknown option before argparse misses an argument."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break
            option = word.partition("=")[0]
            if option.startswith("--") and option not in self._option_string_actions:
                self.refuse_option(option)
        return super().parse_known_args(words, namespace)

    def refuse_option(self, option: str) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        raise not_known(f"option {option}", option, known)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise not_known(f"{(action.metavar or action.dest)!s} {value}".lower(), str(value), list(action.choices))

    def error(self, message: str) -> Any:
        raise InputError(f"{message}; {self.prog} --help explains the arguments")


def summaries(action: Any) -> Sequence[tuple[str, str]]:
    """The subcommands with their explanations."""
    return [(each.dest, each.help or "") for each in action._choices_actions]


def arrangement(action: argparse.Action) -> str:
    """A positional argument as a usage line shows it."""
    name = str(action.metavar or action.dest)
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


def invocation(action: argparse.Action) -> str:
    """An option with the name of its value."""
    name = ", ".join(action.option_strings)
    return name if action.nargs == 0 else f"{name} {action.metavar or action.dest.upper()}"
