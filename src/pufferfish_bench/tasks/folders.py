"""Pictures in folders, one folder a class: found, decoded, and kept decoded if they fit in memory."""

import errno
import logging
import math
import os
import stat
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy
from PIL import Image
from rich.console import Console
from rich.progress import track

from pufferfish_bench import machine, processors
from pufferfish_bench.errors import InputError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
PAUSES = (0.1, 0.5)  # seconds before a file is tried again: a network file system may stumble
OUR_OWN = {errno.EMFILE, errno.ENFILE}  # errors that say nothing about the file
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
PROBED = 100  # files whose size stands for all when memory is estimated
MEMORY_SHARE = 0.8  # of what is free, for decoded pictures

log = logging.getLogger(__name__)

warnings.filterwarnings("ignore", module="PIL")  # odd metadata in one of a million files is nobody's concern


class Unreadable(Exception):
    """A file that is no picture, or not a whole one."""


class Pictures:
    """Labelled pictures on disk, decoded when asked for; one of more than `max_megapixels` counts as unreadable."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int], max_megapixels: float = math.inf):
        self.paths = paths
        self.max_megapixels = max_megapixels
        self.labels = numpy.asarray(labels, dtype=numpy.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def pixels(self, index: int) -> numpy.ndarray:
        """A picture as (height, width, 3), eight bits a channel, whatever its file holds; Unreadable if it cannot be had."""
        return decoded(self.paths[index], self.max_megapixels)


class DecodedPictures(Pictures):
    """Pictures decoded once and held in memory."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int], max_megapixels: float = math.inf):
        super().__init__(paths, labels, max_megapixels)
        folder = os.path.commonpath(paths)
        log.info(f"decoding {len(paths):,} pictures in {folder}")
        with ThreadPoolExecutor(processors.cores()) as pool:
            console = Console(stderr=True)
            silent = not sys.stderr.isatty()
            decoding = pool.map(partial(decoded_or_not, max_megapixels=max_megapixels), paths)
            self.kept = list(track(decoding, f"decoding {folder}", len(paths), console=console, disable=silent, transient=True))

    def pixels(self, index: int) -> numpy.ndarray:
        kept = self.kept[index]
        if isinstance(kept, str):
            raise Unreadable(kept)
        return kept


def opened(path: str, max_megapixels: float = math.inf) -> Image.Image:
    """A picture whose header has been read and whose pixels have not; Unreadable if it is no regular file, or too large."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):  # nobody may ever write to a pipe, and a device may never end
        raise Unreadable(f"it is {KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")
    picture = Image.open(path)
    width, height = picture.size
    if width * height > max_megapixels * 1e6:
        picture.close()
        raise Unreadable(f"it has {width}x{height} pixels, more than dataset.max_megapixels={max_megapixels:g}")
    return picture


def decoded(path: str, max_megapixels: float = math.inf) -> numpy.ndarray:
    """The pixels of a file: grey, CMYK and palette pictures as RGB."""
    for pause in (*PAUSES, None):
        try:
            with opened(path, max_megapixels) as picture:
                return numpy.array(picture.convert("RGB"))
        except Unreadable:
            raise
        except Exception as error:  # Pillow lets through whatever its parsers trip over
            number = getattr(error, "errno", None)
            if isinstance(error, MemoryError) or number in OUR_OWN:
                raise
            if number is None or pause is None:  # no trouble with the file system, or too much of it
                raise Unreadable(str(error)) from None
            time.sleep(pause)


def decoded_or_not(path: str, max_megapixels: float) -> numpy.ndarray | str:
    """The pixels, or the reason why there are none."""
    try:
        return decoded(path, max_megapixels)
    except Unreadable as error:
        return str(error)


def refuse_what_does_not_fit(paths: Sequence[str], max_megapixels: float) -> None:
    """Stop before the memory is full rather than after, going by the sizes of some of the files."""
    areas = []
    for path in paths[:: max(1, len(paths) // PROBED)]:
        try:
            with opened(path, max_megapixels) as picture:
                areas.append(picture.width * picture.height)
        except Exception:  # counted and named when it is decoded
            continue
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # each keeps them all
    needed = 3 * len(paths) * sum(areas) / max(1, len(areas)) * processes
    free = machine.free_memory()
    if needed > MEMORY_SHARE * free:
        raise InputError(
            f"dataset.cache=true: {len(paths):,} pictures in {os.path.commonpath(paths)} need about {needed / 2**30:.1f} GiB "
            f"decoded, and {free / 2**30:.1f} GiB are free; use dataset.cache=false"
        )


def parts(folder: Path, classes: int) -> list[tuple[list[str], list[int]]]:
    """The paths and labels of all pictures in train/ and in val/, which must have the same classes, `classes` of them."""
    train, val = folder / "train", folder / "val"
    missing = [str(part) for part in (train, val) if not part.is_dir()]
    if missing:
        raise InputError(
            f"there is no folder {' and no folder '.join(missing)}: pictures are looked for in {folder}/{{train,val}}/<class>/. "
            "Give their place with data_root=DIR or PUFFERFISH_DATA, and dataset.folder=NAME below it (nobody may "
            "hand on ImageNet, so it cannot be fetched), or use the embedded data: dataset=synthetic_images"
        )
    names, others = class_names(train), class_names(val)
    if names != others:
        apart = sorted(set(names) ^ set(others))
        raise InputError(f"{train} and {val} have different classes: {', '.join(apart[:5])}{' ...' if len(apart) > 5 else ''}")
    if len(names) != classes:
        raise InputError(f"dataset.classes={classes}, but {train} has {len(names)}; use dataset.classes={len(names)}")
    return [listed(part, names) for part in (train, val)]


def class_names(folder: Path) -> list[str]:
    """The classes of a folder, in order: the names of its folders."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise InputError(f"{folder} has no folders: each class needs its own, as in {folder / 'n01440764'}")
    return names


def listed(folder: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    """The paths of all pictures below `folder`, class by class and sorted, and their labels; no class may be empty."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(entry.path for entry in os.scandir(folder / name) if is_picture(entry.name))
        if not found:
            raise InputError(f"{folder / name} has no pictures (folders inside it are not read): fill it, or remove this class")
        paths += found
        labels += [label] * len(found)
    return paths, labels


def is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")
