"""The command pufferfish-translate: sentences in, translations out, by the model of a finished run."""

import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench.errors import InputError
from pufferfish_bench.main import build, complain, spoken_errors
from pufferfish_bench.records import RUN, VOCABULARY, read_json

USAGE = """pufferfish-translate run=DIR ["ein mann spielt gitarre" ...]

Prints the translation of each sentence, or of each line of standard input, by the model of a finished translation run."""


def restored(directory: Path, record: dict[str, Any]) -> Any:
    """The model of a run as its last checkpoint has it, with the structure that its surgeries gave it."""
    from pufferfish_bench.checkpoints import Checkpoints

    settings = record["settings"]
    model = build(OmegaConf.create(settings["model"]))
    saved = Checkpoints(directory=directory / "checkpoints").load()
    if saved is None:
        raise InputError(f"{directory} has no checkpoint")
    plan = build(OmegaConf.create(settings["method"])).plan(settings["epochs"])
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
    directory = Path(named[0].removeprefix("run="))
    if not (directory / RUN).is_file():
        raise InputError(f"there is no run in {directory}")
    record = read_json(directory / RUN)
    if "finished" not in record:
        raise InputError(f"the run in {directory} is not finished; give its command again to go on with it")
    if not (directory / VOCABULARY).is_file():
        raise InputError(f"the run in {directory} ({record['settings']['name']}) has not learnt to translate")

    from pufferfish_bench.decoding import translate
    from pufferfish_bench.tasks.pairs import END, PAD, START, numbered, spoken, tokenise

    vocabulary = (directory / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
    table = {word: number for number, word in enumerate(vocabulary)}
    model, dataset = restored(directory, record), record["settings"]["dataset"]
    if not sentences and sys.stdin.isatty():
        complain("reading from the keyboard; end with Ctrl-D")
    for line in sentences or sys.stdin:
        source = [numbered(words, table) for words in tokenise("de", [line.strip()])]
        found = translate(
            model, source, padding=PAD, start=START, end=END, beam=dataset["beam"], alpha=dataset["alpha"],
            longest=dataset["longest"], batch_size=1,
        )  # fmt: skip
        print(spoken(found[0], vocabulary), flush=True)


def run() -> None:
    """The command pufferfish-translate."""
    with spoken_errors():
        main(sys.argv[1:])


if __name__ == "__main__":
    run()
