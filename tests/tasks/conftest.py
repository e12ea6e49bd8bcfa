"""Pictures on disk, for the tests of ImageNet."""

from pathlib import Path

import pytest
from PIL import Image

from tests.support.pictures import CLASSES, PER_CLASS, photograph


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, each with seven training and two test pictures that differ in colours and size."""
    for part, count in (("train", PER_CLASS), ("val", 2)):
        for label, name in enumerate(CLASSES):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture = photograph(30 + number, 40 - number, seed=100 * label + number)
                Image.fromarray(picture).save(folder / f"{name}_{number}.JPEG", quality=95)
    return tmp_path
