"""Builds the model of an exported file."""

from collections.abc import Collection
from pathlib import Path

from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.export.container import FACTORED, load
from pufferfish_bench.pruning import channels


def rebuild(path: str | Path, allow: Collection[str] = ()) -> nn.Module:
    """The model in an exported file, on the CPU and in evaluation mode.

    The file names the class of its model. Only models of this package are built, and those that `allow` names
    (`allow=["my_net.Net"]`): the author of a file could otherwise have any code executed.
    """
    from pufferfish_bench.config.restore import build_net

    state, metadata = load(path)
    model = build_net(metadata["model"], allow)
    try:
        if metadata["channels"]:
            channels.resize(model, metadata["channels"])
        if metadata["form"] == FACTORED:
            lowrank.restructure(model, metadata["ranks"])
        model.load_state_dict(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = printable(" ".join(str(error).split())[:200] or type(error).__name__)
        raise InputError(f"the tensors in {path} do not fit the model that its metadata describe: {why}") from error
    return model.eval()
