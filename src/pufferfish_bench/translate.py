"""The command pufferfish-translate: sentences in, translations out, by the model of a finished run."""

import re
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench.errors import InputError
from pufferfish_bench.main import build, config_errors
from pufferfish_bench.records import RUN, VOCABULARY, read_json
from pufferfish_bench.speech import VERSION, complain, spoken_errors

USAGE = """pufferfish-translate run=DIR ["ein mann spielt gitarre" ...]

Prints the translation of each sentence, or of each line of standard input, by the model of a finished translation run.
Lines that do not come from a keyboard are translated many at a time. What is too long gets an empty line and a warning.
Words that the model does not know are named in a warning, each of them once."""


def restored(directory: Path, record: dict[str, Any]) -> Any:
    """The model of a run as its last checkpoint has it, with the structure that its surgeries gave it."""
    from pufferfish_bench.checkpoints import Checkpoints
    from pufferfish_bench.world import alone

    settings = record["settings"]
    model = build(OmegaConf.create(settings["model"]))
    saved = Checkpoints(directory=directory / "checkpoints", world=alone()).load()
    if saved is None:
        raise InputError(f"{directory} has no checkpoint")
    plan = build(OmegaConf.create(settings["method"])).plan(settings["epochs"], model)
    for phase, done in zip(plan, saved["operations"], strict=True):
        if phase.enter:
            phase.enter.replay(model, done)
    model.load_state_dict(saved["model"])
    return model.eval()


def main(words: list[str]) -> None:
    named = [word for word in words if word.startswith("run=")]
    sentences = [word for word in words if not word.startswith("run=")]
    if len(named) != 1 or sentences in (["--help"], ["-h"]):
        print(USAGE)
        sys.exit(0 if words in (["--help"], ["-h"]) else 2)
    mistyped = [word for word in sentences if re.fullmatch(r"\w+=\S*", word)]
    if mistyped:
        raise InputError(f"{mistyped[0]} is no sentence, and there is no setting of that name but run=DIR")
    directory = Path(named[0].removeprefix("run="))
    if not (directory / RUN).is_file():
        raise InputError(f"there is no run in {directory}")
    record = read_json(directory / RUN)
    if "finished" not in record:
        raise InputError(f"the run in {directory} is not finished; give its command again to go on with it")
    if not (directory / VOCABULARY).is_file():
        raise InputError(f"the run in {directory} ({record['settings']['name']}) has not learnt to translate")

    at_once = record["settings"]["dataset"]["test_batch_size"]
    if not sentences and sys.stdin.isatty():
        complain("reading from the keyboard; end with Ctrl-D")
        at_once = 1
    translated, lines = translator(directory, record), iter(sentences or sys.stdin)
    while some := list(islice(lines, at_once)):
        print("\n".join(translated(some)), flush=True)


def translator(directory: Path, record: dict[str, Any]) -> Callable[[list[str]], list[str]]:
    """A function from lines to their translations, in their order; what cannot be translated becomes an empty line."""
    from pufferfish_bench.decoding import translate
    from pufferfish_bench.tasks.pairs import END, PAD, START, detokenised, numbered, spoken, tokenise

    vocabulary = (directory / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
    table = {word: number for number, word in enumerate(vocabulary)}
    model, dataset = restored(directory, record), record["settings"]["dataset"]
    search = {key: dataset[key] for key in ("beam", "alpha", "longest")}
    named: set[str] = set()  # words outside the vocabulary that a warning has named

    def translated(lines: list[str]) -> list[str]:
        sources = {}
        for number, words in enumerate(tokenise("de", [line.strip() for line in lines])):
            source = numbered(words, table)
            if len(source) > record["settings"]["model"]["positions"]:
                complain(f"warning: not translated, as {len(words)} words are too long for the model: {lines[number][:40]} ...")
            elif words:
                sources[number] = source
                unknown = [word for word in dict.fromkeys(words) if word not in table and word not in named]
                if unknown:
                    named.update(unknown)
                    complain(f"warning: not in the model's vocabulary, and translated as unknown words: {', '.join(unknown)}")
        found = translate(model, list(sources.values()), padding=PAD, start=START, end=END, batch_size=len(lines), **search)
        said = dict(zip(sources, found, strict=True))
        return [detokenised(spoken(said.get(number, []), vocabulary)) for number in range(len(lines))]

    return translated


def run() -> None:
    """The command pufferfish-translate."""
    with spoken_errors(), config_errors():
        if "--version" in sys.argv[1:]:
            print(VERSION)
        else:
            main(sys.argv[1:])


if __name__ == "__main__":
    run()
