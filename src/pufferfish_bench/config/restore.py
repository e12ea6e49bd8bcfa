"""The model of a finished run, rebuilt from its record and its last checkpoint."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.config import trusted
from pufferfish_bench.config.build import RESOLVED, build, config_errors


def vet(record: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Refuse a record whose model or method is neither part of this package nor allowed by the user."""
    settings = record["settings"]
    trusted.vet("model.net", settings["model"].get("net"), allowed)
    trusted.vet("method", method_settings(record), allowed)


def method_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a record's method; its `layers` are what the run resolved `auto` to."""
    settings: dict[str, Any] = record["settings"]["method"]
    return settings | {"layers": record[RESOLVED]} if RESOLVED in record and isinstance(settings, dict) else settings


def prepare_imports(allowed: Collection[str]) -> None:
    """Foreign code may import torchvision, which needs this first with a CPU build of torch."""
    if allowed:
        import pufferfish_bench.models.torchvision_import  # noqa: F401


def build_net(net: Any, allowed: Collection[str] = ()) -> Any:
    """The model that a constructor (`_target_`) and its arguments describe, which somebody else may have written."""
    trusted.vet("model.net", net, allowed)
    prepare_imports(allowed)
    with config_errors():
        return build("model", OmegaConf.create({"net": net}))


def restored_model(directory: Path, record: Mapping[str, Any], allowed: Collection[str] = ()) -> Any:
    """The model from the last checkpoint of a run, with the structure that the run's surgeries gave it.

    `allowed` names what may be built besides the models and methods of this package.
    """
    vet(record, allowed)
    prepare_imports(allowed)
    from pufferfish_bench.distributed.surgery import replay_phase
    from pufferfish_bench.distributed.world import single_process
    from pufferfish_bench.training import checkpoints

    settings = record["settings"]
    paths = checkpoints.Checkpoints(directory=directory / "checkpoints", world=single_process()).paths()
    if not paths:
        raise InputError(f"{directory} has no checkpoint, so its model cannot be restored; run its command again")
    try:
        saved = checkpoints.halves(paths[-1], first=True)["shared"]  # only the last one: it is from the end of the run
        model = build("model", OmegaConf.create(settings["model"]))
        plan = build("method", OmegaConf.create(method_settings(record))).plan(settings["epochs"], model)
        for phase, done in zip(plan, saved["operations"], strict=True):
            replay_phase(phase, model, done)
        model.load_state_dict(saved["model"])
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = printable((str(error).splitlines() or [type(error).__name__])[0])
        raise InputError(f"the checkpoint in {directory} does not match its record: {why}") from error
    return model.eval()
