"""The exported file: safetensors, whose metadata says how to build the model. Knows nothing of runs.

Metadata of a safetensors file are strings: `form` is factored or merged, the others are JSON. `ranks` has the rank of each
low-rank layer, `channels` the inputs and outputs of the layers of a network from which channels were removed, `model` the
constructor (`_target_`) and its arguments, `aliases` further names of tensors that occur once in the file (tied weights).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable

VERSION = 1
MARK = "pufferfish_export"  # the key of the version, and the sign that we wrote the file
FACTORED, MERGED = "factored", "merged"
OBJECTS = ("ranks", "channels", "model", "aliases", "run", "metric")  # the metadata that are JSON objects


def save(path: Path, state: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write a state_dict and its metadata; a tensor that has several names is written once."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[tuple[Any, ...], str] = {}  # by place in memory
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} of the model's state is a {type(value).__name__}; safetensors holds only tensors")
        place = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        first = names.setdefault(place, name) if value.numel() else name
        if first == name:
            tensors[name] = value.detach().clone().contiguous()
        else:
            aliases[name] = first
    described = {"format": "pt", MARK: str(VERSION), "form": metadata["form"], **texts({**metadata, "aliases": aliases})}
    safetensors.torch.save_file(tensors, path, described)
    mask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # safetensors lets only the owner read it


def texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Metadata as strings, without the form."""
    return {key: json.dumps(metadata[key]) for key in OBJECTS}


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state_dict in an exported file, tied weights under all their names, and its metadata."""
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = parsed(file.metadata() or {}, str(path))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {printable(str(error))}") from error
    for alias, name in metadata["aliases"].items():
        if name not in state:
            raise InputError(f"{path} has no tensor {printable(str(name))}, which is also {printable(alias)}")
        state[alias] = state[name]
    return state, metadata


def parsed(written: Mapping[str, str], where: str) -> dict[str, Any]:
    """The metadata as plain data."""
    if MARK not in written:
        raise InputError(f"{where} was not written by pufferfish-export: its metadata have no {MARK}")
    if written[MARK] != str(VERSION):
        raise InputError(f"{where} has version {printable(written[MARK])[:20]}, but this version of the package reads {VERSION}")
    found: dict[str, Any] = {MARK: VERSION, "form": written.get("form")}
    if found["form"] not in (FACTORED, MERGED):
        raise InputError(f"{where} is damaged: its form must be {FACTORED} or {MERGED}")
    for key in OBJECTS:
        try:
            found[key] = json.loads(written.get(key, ""))
        except (ValueError, RecursionError):
            found[key] = None
        if not isinstance(found[key], dict):
            raise InputError(f"{where} is damaged: {key} in its metadata is not a JSON object")
    return found
