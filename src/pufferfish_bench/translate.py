"""The command pufferfish-translate: sentences in, translations out, by the model of a finished run."""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench import checked, constructors
from pufferfish_bench.errors import InputError
from pufferfish_bench.main import build, config_errors
from pufferfish_bench.records import RUN, VOCABULARY
from pufferfish_bench.speech import VERSION, complain, spoken_errors
from pufferfish_bench.visible import visible

NEEDED = ("settings.name", "settings.model", "settings.method", "settings.dataset", "settings.epochs")
WHOLE = ("dataset.test_batch_size", "dataset.beam", "dataset.longest", "model.positions")
USAGE = """pufferfish-translate run=DIR [--allow NAME] ["ein mann spielt gitarre" ...]

Prints the translation of each sentence, or of each line of standard input, by the model of a finished translation run.
Lines that do not come from a keyboard are translated many at a time. What is too long gets an empty line and a warning.
Words that the model does not know are named in a warning, each of them once.

A record says what its model is built by. Only the models and methods of this package are built, and those that --allow names
(--allow my_net.Net; may be given again): whoever wrote the record decides what is run."""


def vet(record: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Refuse a record whose model would be built by something else than what is known here or allowed."""
    for group in ("model", "method"):
        constructors.vet(group, record["settings"][group], allowed)


def restored(directory: Path, record: dict[str, Any], allowed: Collection[str] = ()) -> Any:
    """The model of a run as its last checkpoint has it, with the structure that its surgeries gave it.

    `allowed` names what may be built beside the models and methods of this package.
    """
    vet(record, allowed)
    from pufferfish_bench import checkpoints
    from pufferfish_bench.surgery import replay_phase
    from pufferfish_bench.world import alone

    settings = record["settings"]
    paths = checkpoints.Checkpoints(directory=directory / "checkpoints", world=alone()).paths()
    if not paths:
        raise InputError(f"{directory} has no checkpoint")
    try:
        saved = checkpoints.read(paths[-1])["shared"]  # of the end of the run, and no other
        model = build(OmegaConf.create(settings["model"]))
        plan = build(OmegaConf.create(settings["method"])).plan(settings["epochs"], model)
        for phase, done in zip(plan, saved["operations"], strict=True):
            replay_phase(phase, model, done)
        model.load_state_dict(saved["model"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = visible((str(error).splitlines() or [type(error).__name__])[0])
        raise InputError(f"the checkpoint in {directory} does not fit its record: {why}") from error
    return model.eval()


def arguments(words: list[str]) -> tuple[Path, list[str], list[str]]:
    """The directory of the run, the sentences, and what the user allows to be built."""
    allowed, others, rest = [], [], iter(words)
    for word in rest:
        if word == "--allow" or word.startswith("--allow="):
            allowed.append(word.partition("=")[2] if "=" in word else next(rest, ""))
        else:
            others.append(word)
    named = [word for word in others if word.startswith("run=")]
    sentences = [word for word in others if not word.startswith("run=")]
    if len(named) != 1 or sentences in (["--help"], ["-h"]):
        print(USAGE)
        sys.exit(0 if words in (["--help"], ["-h"]) else 2)
    if not all(allowed):
        raise InputError("--allow wants the name of a model or method, as in --allow my_net.Net")
    mistyped = [word for word in sentences if re.fullmatch(r"\w+=\S*", word)]
    if mistyped:
        raise InputError(f"{mistyped[0]} is no sentence, and there is no setting of that name but run=DIR")
    return Path(named[0].removeprefix("run=")), sentences, allowed


def main(words: list[str]) -> None:
    directory, sentences, allowed = arguments(words)
    record = checked.read_run(directory, needs=NEEDED)
    if "finished" not in record:
        raise InputError(f"the run in {directory} is not finished; give its command again to go on with it")
    if not (directory / VOCABULARY).is_file():
        raise InputError(f"the run in {directory} ({visible(record['settings']['name'])}) has not learnt to translate")
    vet(record, allowed)
    checked.require(record, [f"settings.{key}" for key in WHOLE], str(directory / RUN))
    settings = record["settings"]
    for key in WHOLE:
        group, _, name = key.partition(".")
        if type(settings[group][name]) is not int or settings[group][name] < 1:
            raise InputError(f"{directory / RUN}: settings.{key} is not a whole number above 0")
    if not checked.is_amount(settings["dataset"].get("alpha")):
        raise InputError(f"{directory / RUN}: settings.dataset.alpha is not a number")
    if allowed:
        sys.path.append(os.getcwd())  # a net of one's own is where one is; never before the modules that are installed
    at_once = settings["dataset"]["test_batch_size"]
    if not sentences and sys.stdin.isatty():
        complain("reading from the keyboard; end with Ctrl-D")
        at_once = 1
    translated, lines = translator(directory, record, allowed), iter(sentences or sys.stdin)
    while some := list(islice(lines, at_once)):
        print("\n".join(map(visible, translated(some))), flush=True)  # its words are what the vocabulary says


def translator(directory: Path, record: dict[str, Any], allowed: Collection[str] = ()) -> Callable[[list[str]], list[str]]:
    """A function from lines to their translations, in their order; what cannot be translated becomes an empty line."""
    from pufferfish_bench.decoding import translate
    from pufferfish_bench.tasks.pairs import END, PAD, START, detokenised, numbered, spoken, tokenise

    try:
        vocabulary = (directory / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise InputError(f"{directory / VOCABULARY} is not UTF-8") from None
    words = record["settings"]["model"].get("vocabulary", len(vocabulary))
    if len(vocabulary) != words:
        raise InputError(f"{directory / VOCABULARY} has {len(vocabulary)} words, and the model of the run {words}")
    table = {word: number for number, word in enumerate(vocabulary)}
    model, dataset = restored(directory, record, allowed), record["settings"]["dataset"]
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
