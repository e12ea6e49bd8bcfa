"""The help pages of the commands that do not use argparse. Imports neither Hydra nor torch."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pufferfish_bench.cli.commands import program
from pufferfish_bench.cli.help_page import ALWAYS, Page

SETTINGS = "GROUP=CHOICE ... KEY=VALUE ... [OPTION ...]"
SHARED = {
    "--help-settings": "print all settings with their values, for the groups given beside it (Hydra's --cfg job)",
    "--config-dir DIR": "add config files of your own, in folders like conf/ (or set PUFFERFISH_CONF)",
    "--shell-completion X": "completion of groups, choices and keys; X is install=bash, install=zsh, install=fish or uninstall=...",
}
ALLOW = "a model or method that is not part of this package and may be built, such as my_net.Net; repeatable: the author of a record could otherwise have any code executed"


def page(name: str, words: Sequence[str] = ()) -> Page:
    """The help of a command. `words` may name folders with config files of the user's own."""
    return PAGES[name](program(name), words)


def groups(words: Sequence[str], only: Sequence[str] = ()) -> dict[str, str]:
    """The groups with their choices; with `only`, those of these groups."""
    from pufferfish_bench.config.choices import choices
    from pufferfish_bench.config.own_configs import config_dirs, own_folders
    from pufferfish_bench.config.settings import config_dir

    found = choices([Path(config_dir()), *own_folders(), *map(Path, config_dirs(words))])
    return {group: ", ".join(names) for group, names in found.items() if not only or group in only}


def run_page(name: str, words: Sequence[str]) -> Page:
    return Page(
        name,
        SETTINGS,
        "Trains a model with a method on a data set, and resumes: the same command continues a run that was stopped, and shows "
        "the results of one that is finished.",
        {
            f"{name} profile=smoke": "a run of seconds, without data",
            f"{name} model=lstm method=pufferfish profile=smoke": "another model and method",
            f"{name} profile=smoke epochs=2 schedule.learning_rate=0.05": "other settings",
            f"{name} --multirun method=vanilla,pufferfish seed=1,2 profile=smoke": "a run for each combination",
            "torchrun --nproc-per-node 2 -m pufferfish_bench reducer=powersgd profile=smoke": "two processes",
        },
        {
            "Groups (default: model=resnet18 method=vanilla profile=paper; the others follow from the model)": groups(words),
            "Options": {"--multirun, -m": "run every combination of values that are separated by commas"} | SHARED | ALWAYS,
        },
        "profile=paper has the paper's settings, profile=cpu a miniature for two cores, profile=smoke takes seconds. Every key is a "
        "setting: epochs, batch_size, seed, run_dir, data_root, device, model.net.width, schedule.learning_rate, optimizer.momentum, ...",
    )


def describe_page(name: str, words: Sequence[str]) -> Page:
    return Page(
        name,
        SETTINGS,
        "Prints the layers of a model with their ranks, parameters and MACs, full and factorised. Needs no data. With run=DIR: "
        "what a run did to its layers, and when.",
        {
            f"{name} model=vgg19": "layers, and the totals beside the paper's",
            f"{name} model=resnet18 model.low_rank.rank_ratio=0.5": "other ranks",
            f"{name} model=lstm json=true": "for programs",
            f"{name} run=results/runs/NAME": "a run",
        },
        {
            "Groups (default: model=resnet18 profile=paper)": groups(words, ("model", "dataset", "profile")),
            "Settings": {
                "run=DIR": "the directory of a run",
                "json=true": "print JSON",
                "model.KEY=VALUE": "a setting of the model, as in pufferfish-run",
            },
            "Options": SHARED | ALWAYS,
        },
    )


def advise_page(name: str, words: Sequence[str]) -> Page:
    return Page(
        name,
        SETTINGS,
        "Measures a model on this device and predicts which method pays, at which rank, on which network. Takes minutes, trains "
        "nothing, needs no data.",
        {
            f"{name} model=resnet18 network=10gbit workers=16": "one network",
            f"{name} model=lstm network=p3.2xlarge workers=2..1024 out=advice/lstm": "also writes files",
            "torchrun --nproc-per-node 2 -m pufferfish_bench.cli.advise model=vgg19 network=measured": "measures the network",
        },
        {
            "Groups (default: model=resnet18 profile=paper precision=fp32)": groups(
                words, ("model", "dataset", "profile", "precision", "optimizer")
            ),
            "Settings": {
                "network=X": "a rate such as 10gbit, measured (under torchrun), a JSON file, a run's directory, or a cloud instance",
                "workers=N": "a number, a list such as [2,8,16], or a range such as 2..1024; latency=50us is that of a message",
                "ratios=[0.5,0.25]": "ranks to measure, as fractions of the smaller side of a layer; layers=all takes the model's own",
                "rounds=N": "how often everything is measured; quick=true takes two rounds, to see that it works",
                "run=DIR": "a finished run of this model: adds the stable ranks of its layers",
                "out=FOLDER/NAME": "write NAME.json and a chart; json=true prints JSON",
            },
            "Options": SHARED | ALWAYS,
        },
    )


def translate_page(name: str, words: Sequence[str]) -> Page:
    return Page(
        name,
        "run=DIR [OPTION ...] [SENTENCE ...]",
        "Translates each sentence, or each line of standard input, with the model of a finished translation run. A sentence that "
        "is too long gives an empty line and a warning. A warning lists words that the model does not know, each of them once.",
        {
            f'{name} run=results/runs/NAME "ein mann spielt gitarre"': "a sentence",
            f"{name} run=results/runs/NAME < sentences.de": "lines, in batches",
        },
        {"Arguments": {"run=DIR": "the directory of a run"}, "Options": {"--allow NAME": ALLOW} | ALWAYS},
    )


def export_page(name: str, words: Sequence[str]) -> Page:
    return Page(
        name,
        "run=DIR [OPTION ...] OUT.safetensors",
        "Writes the model of a finished run to a file: its tensors, and in the metadata its ranks, constructor, run and metric. "
        "Before the file gets its name, the command rebuilds the model from it and compares the outputs with those of the run's "
        "model. It prints the largest differences, and the latency of the factored and of the merged model.",
        {
            f"{name} run=results/runs/NAME out.safetensors": "low-rank layers stay factored",
            f"{name} run=results/runs/NAME --merge dense.safetensors": "dense layers",
        },
        {
            "Arguments": {"run=DIR": "the directory of a run", "OUT.safetensors": "the file to write"},
            "Options": {
                "--merge": "write dense layers: each pair of factors is multiplied",
                "--onnx": "also write OUT.onnx, checked with onnxruntime; needs pip install 'pufferfish-bench[onnx]'",
                "--force": "replace files that exist",
                "--input SHAPE": "shape of one input, as in 3x32x32, for a data set that is not part of this package",
                "--allow NAME": ALLOW,
            }
            | ALWAYS,
        },
        "In Python, pufferfish_bench.export.rebuild('out.safetensors') is the model again.",
    )


PAGES: dict[str, Callable[[str, Sequence[str]], Page]] = {
    "run": run_page,
    "describe": describe_page,
    "advise": advise_page,
    "translate": translate_page,
    "export": export_page,
}
