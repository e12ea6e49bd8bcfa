"""The classes of a folder of pictures, by the names of its folders. Needs no torch: a config refers to their number."""

import hashlib
import os
from pathlib import Path

from pufferfish_bench.base.errors import InputError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")


def training_folder(folder: Path) -> Path:
    """Where the folders of the classes are: in train/ if there is one, else in the folder itself."""
    return folder / "train" if (folder / "train").is_dir() else folder


def count_classes(folder: Path) -> int:
    """The number of classes of a folder of pictures."""
    if not folder.is_dir():
        raise InputError(
            f"dataset.folder={folder}: there is no such folder; pictures are expected in {folder}/<class>/, or in "
            f"{folder}/{{train,val}}/<class>/"
        )
    return len(class_names(training_folder(folder)))


def class_names(folder: Path) -> list[str]:
    """The sorted names of the folders in a folder: one per class."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise InputError(f"{folder} has no folders: it needs one for each class, for example {folder / 'n01440764'}")
    return names


def is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def hash_of_pictures(folder: Path) -> str:
    """A hash of the names and sizes of all pictures of the classes, below train/ and val/ or in the folder itself."""
    found = hashlib.sha256()
    for part in dict.fromkeys((training_folder(folder), folder / "val")):
        for path in sorted(part.glob("*/*")):
            if is_picture(path.name):
                found.update(os.fsencode(f"{path.relative_to(folder)}\0{path.stat().st_size}\0"))
    return found.hexdigest()[:16]
