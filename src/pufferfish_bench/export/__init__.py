"""Trained models in files of their own: safetensors, with all in the metadata that is needed to build the model again.

    from pufferfish_bench import export

    model = export.rebuild("out.safetensors")              # the model, in evaluation mode
    state, metadata = export.load("out.safetensors")       # its tensors by name, and its ranks, constructor, run and metric

The command pufferfish-export writes such files.
"""

from pufferfish_bench.export.container import load
from pufferfish_bench.export.restore import rebuild

__all__ = ["load", "rebuild"]
