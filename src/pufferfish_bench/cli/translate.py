"""The command pufferfish-translate: translate sentences with the model of a finished run."""

import os
import re
import sys
from collections.abc import Callable, Collection
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any

from pufferfish_bench.base.console import complain
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.cli.messages import run_with_words
from pufferfish_bench.config.restore import restored_model, vet
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import RUN, VOCABULARY

NEEDED = ("settings.name", "settings.model", "settings.method", "settings.dataset", "settings.epochs")
OPTIONS = ("--allow", "--help", "--version")
WHOLE = ("dataset.test_batch_size", "dataset.beam", "dataset.longest", "model.net.positions")


def arguments(words: list[str]) -> tuple[Path, list[str], list[str]]:
    """The directory of the run, the sentences, and the names that the user allows."""
    allowed, others, rest = [], [], iter(words)
    for word in rest:
        if word == "--allow" or word.startswith("--allow="):
            allowed.append(word.partition("=")[2] if "=" in word else next(rest, ""))
        else:
            others.append(word)
    named = [word for word in others if word.startswith("run=")]
    sentences = [word for word in others if not word.startswith("run=")]
    for word in sentences:
        if re.fullmatch(r"--\w[\w-]*", word):
            raise not_known(f"option {word}", word, OPTIONS)
        if re.fullmatch(r"\w+=\S*", word):
            raise InputError(f"there is no setting {word}; give run=DIR and sentences")
    if len(named) != 1 or not named[0].removeprefix("run="):
        raise InputError(f"give one run=DIR, the directory of a finished translation run; got {len(named)}")
    if not all(allowed):
        raise InputError("--allow needs the name of a model or method, as in --allow my_net.Net")
    return Path(named[0].removeprefix("run=")), sentences, allowed


def main(words: list[str]) -> None:
    directory, sentences, allowed = arguments(words)
    record = reader.read_run(directory, needs=NEEDED)
    if not reader.is_finished(record):
        raise InputError(f"the run in {directory} is not finished; run its command again to resume it")
    if not (directory / VOCABULARY).is_file():
        raise InputError(
            f"the run in {directory} ({printable(record['settings']['name'])}) is not a translation run: it has no {VOCABULARY}"
        )
    vet(record, allowed)
    reader.require(record, [f"settings.{key}" for key in WHOLE], str(directory / RUN))
    settings = record["settings"]
    for key in WHOLE:
        value = reduce(lambda node, name: node[name], key.split("."), settings)
        if type(value) is not int or value < 1:
            raise InputError(f"{directory / RUN}: settings.{key} must be an integer above 0, got {value!r:.40}")
    if not reader.is_amount(settings["dataset"].get("alpha")):
        raise InputError(f"{directory / RUN}: settings.dataset.alpha is not a number")
    if allowed:
        sys.path.append(os.getcwd())  # for the user's own model; last, so that it cannot shadow installed modules
    at_once = settings["dataset"]["test_batch_size"]
    if not sentences and sys.stdin.isatty():
        complain("reading from the keyboard; end with Ctrl-D")
        at_once = 1
    translated, lines = translator(directory, record, allowed), iter(sentences or sys.stdin)
    while some := list(islice(lines, at_once)):
        print("\n".join(map(printable, translated(some))), flush=True)  # the vocabulary may contain unprintable characters


def translator(directory: Path, record: dict[str, Any], allowed: Collection[str] = ()) -> Callable[[list[str]], list[str]]:
    """A function that translates lines, in order; a line that cannot be translated becomes an empty line."""
    from pufferfish_bench.tasks.translation.beam_search import translate
    from pufferfish_bench.tasks.translation.corpus import END, PAD, START, decode, encode
    from pufferfish_bench.tasks.translation.tokenisation import detokenise, tokenise

    try:
        vocabulary = (directory / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise InputError(f"{directory / VOCABULARY} is not UTF-8") from None
    words = record["settings"]["model"]["net"].get("vocabulary", len(vocabulary))
    if len(vocabulary) != words:
        raise InputError(f"{directory / VOCABULARY} has {len(vocabulary)} words, but the model of the run has {words}")
    table = {word: number for number, word in enumerate(vocabulary)}
    model, dataset = restored_model(directory, record, allowed), record["settings"]["dataset"]
    search = {key: dataset[key] for key in ("beam", "alpha", "longest")}
    in_words = partial(tokenise, dataset.get("languages", ["de"])[0])
    if dataset.get("tokens") == "spaces":
        in_words = words_between_spaces
    named: set[str] = set()  # unknown words that were already reported

    def translated(lines: list[str]) -> list[str]:
        sources = {}
        for number, words in enumerate(in_words([line.strip() for line in lines])):
            source = encode(words, table)
            if len(source) > record["settings"]["model"]["net"]["positions"]:
                complain(f"warning: not translated, {len(words)} words are too many for the model: {lines[number][:40]} ...")
            elif words:
                sources[number] = source
                unknown = [word for word in dict.fromkeys(words) if word not in table and word not in named]
                if unknown:
                    named.update(unknown)
                    complain(f"warning: not in the model's vocabulary, translated as unknown words: {', '.join(unknown)}")
        found = translate(model, list(sources.values()), padding=PAD, start=START, end=END, batch_size=len(lines), **search)
        said = dict(zip(sources, found, strict=True))
        return [detokenise(decode(said.get(number, []), vocabulary)) for number in range(len(lines))]

    return translated


def words_between_spaces(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def run() -> None:
    """The command pufferfish-translate."""
    run_with_words("translate", main)


if __name__ == "__main__":
    run()
