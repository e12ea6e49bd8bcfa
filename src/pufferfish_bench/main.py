"""From the command line to objects to a trained model. Torch waits until the config stands."""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pufferfish_bench import checked, composition, processors, run_directory  # noqa: F401  (Hydra composes with its checks)
from pufferfish_bench.errors import InputError
from pufferfish_bench.preflight import (
    arguments_of,
    check_groups,
    check_model,
    check_rates,
    check_reducer,
    refuse_nonsense,
    warn_of_rate,
)
from pufferfish_bench.records import closing
from pufferfish_bench.settings import (
    Settings,
    check,
    conditions,
    config_dir,
    fully_low_rank,
    identity,
    settings_of,
    together,
    warn_of_batch,
)
from pufferfish_bench.speech import RANK, VERSION, complain, console, say, speak_up, spoken_errors
from pufferfish_bench.sweeps import Sweep

sweep = Sweep()
COMPLETION = ("install", "uninstall", "query")


@contextlib.contextmanager
def config_errors() -> Iterator[None]:
    """What Hydra says of the config becomes an InputError; what it wrapped of ours comes out as it was."""
    theirs = (HydraException, OmegaConfBaseException)
    try:
        yield
    except theirs as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, InputError | OSError) and not isinstance(cause, theirs):  # Hydra's "not found" is both
                raise cause from cause.__cause__
            cause = cause.__cause__
        raise InputError(in_one_line(error)) from error


def in_one_line(error: Exception) -> str:
    """What Hydra says of a config; of a part that could not be built, what its constructor said."""
    if isinstance(error, InstantiationException) and (reason := error.__cause__):
        part = re.search(r"(?:full_key:|target) '?([\w.]+)", str(error))
        said = " ".join(str(reason).split("Exception raised from")[0].split()) or type(reason).__name__
        return f"{part[1] if part else 'a part'} cannot be built: {said}"
    return " ".join(str(error).split("\nConfig search path")[0].split())


nowhere = cache(tempfile.TemporaryDirectory)  # goes with the process: for the multirun.yaml that Hydra writes of a sweep
ConfigStore.instance().store(name="settings", node=Settings)
OmegaConf.register_new_resolver("identity", lambda *, _root_: identity(_root_), replace=True)
OmegaConf.register_new_resolver("together", together, replace=True)
OmegaConf.register_new_resolver("nowhere", lambda: nowhere().name, replace=True)
OmegaConf.register_new_resolver("fully_low_rank", lambda *, _root_: OmegaConf.create(fully_low_rank(_root_)), replace=True)


@hydra.main(config_path=config_dir(), config_name="config", version_base="1.3")
@spoken_errors()
def train(config: DictConfig) -> None:
    """Train what the config says; in a sweep, go on after a run that fails."""
    job = HydraConfig.get()
    swept = job.mode == RunMode.MULTIRUN
    of_sweep = sweep.run(job.overrides.task, job.job.num, config.device) if swept else contextlib.nullcontext()
    with of_sweep, config_errors():
        if "refusal" in config:  # by the composition of a sweep's run
            raise InputError(config.refusal)
        train_one(config)


def train_one(config: DictConfig) -> None:
    """Train what the config says, or go on with it, or say that it is done. A probe only tries its first steps."""
    check(config)
    if not config.probe_steps:
        train_in(Path(config.run_dir), config)
        return
    with tempfile.TemporaryDirectory() as nowhere:
        train_in(Path(nowhere), config)


def train_in(directory: Path, config: DictConfig) -> None:
    settings = settings_of(config)
    say(f"{settings['name']}  ->  {directory}", style="bold")
    if RANK == 0 and config.workers == 1 and run_directory.finished(directory, settings):
        show_summary(directory)  # at once, without torch
        return

    import torch

    from pufferfish_bench import network
    from pufferfish_bench import world as worlds
    from pufferfish_bench.checkpoints import Checkpoints
    from pufferfish_bench.interrupts import Interrupts
    from pufferfish_bench.machine import environment, hold_on_to_memory
    from pufferfish_bench.memory_format import channels_last
    from pufferfish_bench.observers import Probe, Recorder, SlowRun, TensorBoard, Terminal
    from pufferfish_bench.trainer import Stopped, Trainer

    world = worlds.join(config.device, timeout=config.rank_timeout, warn_after=config.rank_warning)
    if world.share(RANK == 0 and run_directory.finished(directory, settings)):
        show_summary(directory)
        return
    if RANK == 0:
        warn_of_batch(config)
    if world.device.type == "cpu":
        hold_on_to_memory()
    precision = instantiate(config.precision)
    precision.prepare(world.device)
    torch.backends.cudnn.deterministic = config.deterministic
    torch.backends.cudnn.benchmark = not config.deterministic
    name_reducer(config)
    check_groups(config)
    parts = ("method", "schedule", "optimizer", "reducer")
    method, schedule, optimizer, reducer = (build(config[group]) for group in parts)
    torch.manual_seed(config.seed)
    model = build(config.model).to(world.device)
    if config.channels_last:
        model = channels_last(model, world.device)
    for group, trial in {
        "optimizer": lambda: optimizer(model),
        "method": lambda: (method.plan(config.epochs, model), method.check(model, optimizer(model))),
        "schedule": lambda: check_rates(schedule, method.plan(config.epochs, model)),
        "reducer": lambda: [
            check_reducer(make(world=world, watch=None), optimizer(model), config, precision)
            for make in (reducer, *(phase.reducer for phase in method.plan(config.epochs, model) if phase.reducer))
        ],
    }.items():
        refuse_nonsense(group, trial)
    if RANK == 0:
        warn_of_rate(config, HydraConfig.get().overrides.task)
    task = build(config.dataset, world=world)  # may take its time, so it comes last
    sample = [tensor.to(world.device) for tensor in instantiate(config.dataset.sample, _convert_="all")]
    task.check(model, sample)

    terminal, profile = Terminal(console=console), HydraConfig.get().runtime.choices.get("profile")
    interrupts, probe = Interrupts(), Probe(steps=config.probe_steps) if config.probe_steps else None
    manifest = {"settings": settings, **environment(world.device), "data": conditions(config), "world_size": world.size}
    lab = os.environ.get(processors.LAB)
    if config.measure_network or lab:
        manifest["network"] = json.loads(lab or "{}") | network.measure(world)
    trainer = Trainer(
        method=method,
        epochs=config.epochs,
        seed=config.seed,
        sample=sample,
        optimizer=optimizer,
        reducer=reducer,
        schedule=schedule,
        precision=precision,
        clip_norm=config.clip_norm,
        # static shapes: which kernels a step runs must not depend on the batches before it, or a resume would differ
        wrap=partial(torch.compile, dynamic=False) if config.compile else lambda module: module,
        untimed_steps=config.untimed_steps,
        checkpoints=Checkpoints(directory=directory / "checkpoints", world=world),
        checkpoint_every=config.checkpoint_every,
        observers=[
            Recorder(directory=directory, manifest=manifest),
            TensorBoard(directory=directory / "tensorboard"),
            terminal,
            *([SlowRun(say=terminal.say, profile=profile)] if world.device.type == "cpu" else []),
        ]
        if world.rank == 0 and not probe
        else [probe] * (world.rank == 0),
        stop_requested=lambda: interrupts.requested() or (probe is not None and probe.over()),
    )
    directory.mkdir(parents=True, exist_ok=True)
    with run_directory.alone(directory) if world.rank == 0 else contextlib.nullcontext(), interrupts:
        try:
            trainer.fit(world=world, task=task, model=model)
        except Stopped:
            if probe and not interrupts.requested():
                return say_pace(probe.found())
            console.print("stopped; a checkpoint is written, and the same command goes on from here", highlight=False)
            sys.exit(128 + (interrupts.received or signal.SIGTERM))  # another rank may have been asked
    return say_pace(probe.found()) if probe else show_summary(directory)


def say_pace(found: dict[str, float]) -> None:
    if RANK == 0:
        print(json.dumps(found))


def identify(overrides: Sequence[str], seeds: Sequence[int]) -> list[tuple[Path, dict[str, Any]]]:
    """For each seed, where pufferfish-run with these words writes its run, and what makes it the run it is."""
    with config_errors(), initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        found = []
        for config.seed in seeds:  # all that depends on it is an interpolation
            found.append((Path(config.run_dir), settings_of(config)))
        return found


@hydra.main(config_path=config_dir(), config_name="describe", version_base="1.3")
@spoken_errors()
@config_errors()
def describe_model(config: DictConfig) -> None:
    """Print the layers and totals of a model, full-rank, hybrid and low-rank."""
    from pufferfish_bench.report import describe

    if config.run is not None:
        describe.show_run(Path(config.run), console)
        return
    check_model(config)
    settings = OmegaConf.to_container(config, resolve=True)
    overrides = HydraConfig.get().overrides.task
    changes = [override for override in overrides if override.split("=")[0] not in ("model", "profile", "json")]
    description = describe.describe(
        settings["name"],
        build=lambda: build(config.model),
        sample=lambda: instantiate(config.dataset.sample, _convert_="all"),
        hybrid=settings["model"].get("low_rank"),
        fully=fully_low_rank(config),
        as_in_paper=settings["profile_name"] == "paper" and not changes,
    )
    if not isinstance(config.json, bool):
        raise InputError(f"json={config.json} is neither true nor false")
    if config.json:
        print(json.dumps(description, indent=2))
    else:
        describe.show(description, console)


def build(group: DictConfig, **further: Any) -> Any:
    """What a group of the config describes; what is to be factored in a model, and what a sample looks like, is for others."""
    return instantiate(arguments_of(group), **further)


def name_reducer(config: DictConfig) -> None:
    """The warm-up's own reducer is given by the name of its file, and with a rank of its own where it has one."""
    name = config.method.get("warmup_reducer")
    if not name:
        return
    folder = Path(config_dir()) / "reducer"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise InputError(f"method.warmup_reducer={name} is not known; allowed: {', '.join(known)}")
    chosen = OmegaConf.load(folder / f"{name}.yaml")
    if "rank" in chosen:
        chosen.rank = config.method.warmup_rank
    with open_dict(config):
        config.method.warmup_reducer = chosen


def show_summary(directory: Path) -> None:
    """The closing words of a finished run; other ranks may not see its files."""
    if RANK:
        return
    with checked.asking(directory):
        record, rows = checked.read(directory)
        say(closing(record["summary"], directory, checked.missing_epochs(record, rows)), lines=True)


def run() -> None:
    """The command pufferfish-run."""
    start(train)


def describe() -> None:
    """The command pufferfish-describe."""
    start(describe_model)


def start(command: Callable[[], None]) -> None:
    if "--version" in sys.argv[1:]:  # Hydra would answer with its own
        print(VERSION)
        return
    speak_up()
    if not os.environ.get("PUFFERFISH_DATA"):
        os.environ.pop("PUFFERFISH_DATA", None)  # an empty one is none, and not the current folder
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a user's own model or method is found as with python -m
    if "--shell-completion" in sys.argv and not any(word.partition("=")[0] in COMPLETION for word in sys.argv):
        complain("error: --shell-completion needs what to do: install=bash, install=zsh or install=fish, or uninstall= with one")
        sys.exit(2)
    if any(word.split("=")[0] in ("--config-name", "-cn", "--config-path", "-cp") for word in sys.argv):
        complain("error: the command has its own config; --config-dir DIR adds yours")
        sys.exit(2)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors on instead of printing them its own way
    with spoken_errors(), sweep.told(), config_errors():
        command()
