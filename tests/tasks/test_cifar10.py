"""CIFAR-10 from its real files, and every way in which they may be missing or damaged."""

import os
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images import download
from pufferfish_bench.tasks.images.cifar10 import MEAN, STD, cifar10

SETTINGS = {
    "fetch": False, "mirrors": [], "train_images": None, "validation_images": 0, "classes": 10, "label_smoothing": 0.0,
    "padding": "reflect", "normalisation": "paper", "batch_size": 128, "test_batch_size": 300, "seed": 1,
    "world": single_process(),
}  # fmt: skip


def test_the_real_files_give_the_published_images(data_root: Path):
    task = cifar10(root=str(data_root), **SETTINGS)
    assert task.train.images.shape == (50_000, 3, 32, 32)
    assert task.test.images.shape == (10_000, 3, 32, 32)
    assert task.train.labels.bincount().tolist() == [5000] * 10
    assert task.steps(0) == 391
    # the first image is a frog with these published pixels
    assert task.train.labels[0] == 6
    assert task.train.images[0, :, 0, 0].tolist() == [59, 62, 63]
    # the constants are the mean and standard deviation of these images
    for channel in range(3):
        pixels = task.train.images[:, channel].float() / 255
        assert float(pixels.mean()) == pytest.approx(MEAN[channel], abs=1e-3)
        assert float(pixels.std()) == pytest.approx(STD[channel], abs=1e-3)


def test_train_images_takes_the_first_images(data_root: Path):
    whole, part = (cifar10(root=str(data_root), **SETTINGS | {"train_images": count}) for count in (None, 300))
    assert torch.equal(part.train.images, whole.train.images[:300])
    assert torch.equal(part.test.labels, whole.test.labels)
    with pytest.raises(InputError, match="train_images=50001"):
        cifar10(root=str(data_root), **SETTINGS | {"train_images": 50_001})


def test_validation_images_come_from_the_end_of_the_training_set(data_root: Path):
    whole, split = (cifar10(root=str(data_root), **SETTINGS | {"validation_images": count}) for count in (0, 1000))
    assert torch.equal(torch.cat([split.train.images, split.test.images]), whole.train.images)
    assert torch.equal(torch.cat([split.train.labels, split.test.labels]), whole.train.labels)
    assert split.test.count() == 1000
    assert "1,000 held-out training images" in split.note
    part = cifar10(root=str(data_root), **SETTINGS | {"validation_images": 1000, "train_images": 300})
    assert torch.equal(part.train.images, whole.train.images[:300])
    assert torch.equal(part.test.images, split.test.images)  # the same, however many train
    for settings in ({"validation_images": 50_000}, {"validation_images": 1000, "train_images": 49_001}):
        with pytest.raises(InputError, match=r"validation_images=50000|train_images=49001"):
            cifar10(root=str(data_root), **SETTINGS | settings)


def test_images_are_prepared_as_in_the_authors_distributed_code(data_root: Path):
    settings = SETTINGS | {"train_images": 200, "batch_size": 200}
    task = cifar10(root=str(data_root), **settings | {"padding": "zero", "normalisation": "distributed"})
    std = (0.2023, 0.1994, 0.2010)
    expected = [(value / 255 - mean) / spread for value, mean, spread in zip((59, 62, 63), MEAN, std, strict=True)]
    assert task.normalise(task.train.images[:1])[0, :, 0, 0].tolist() == pytest.approx(expected, abs=1e-6)
    black = torch.tensor([-mean / spread for mean, spread in zip(MEAN, std, strict=True)])
    (images, labels), (reflected, same_labels) = (
        next(made.batches(0, 0)) for made in (task, cifar10(root=str(data_root), **settings | {"normalisation": "distributed"}))
    )
    assert torch.equal(labels, same_labels)
    differs = (images != reflected).any(1)  # beyond the edges of the image, where it must be black
    assert 0.05 < differs.float().mean() < 0.3
    torch.testing.assert_close(images.movedim(1, -1)[differs], black.expand(int(differs.sum()), 3))


def test_an_unknown_normalisation_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"dataset\.normalisation=imagenet is not known; allowed: paper, distributed"):
        cifar10(root=str(tmp_path), **SETTINGS | {"normalisation": "imagenet"})


def test_missing_data_is_named_with_how_to_get_it_and_what_to_use_instead(tmp_path: Path):
    with pytest.raises(InputError) as error:
        cifar10(root=str(tmp_path), **SETTINGS)
    for words in (str(tmp_path), "data_batch_1 is missing", "data_root=", "download=true", "dataset=synthetic_images"):
        assert words in str(error.value)


def test_a_damaged_file_is_named(data_root: Path, tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file in (data_root / "cifar-10-batches-py").iterdir():
        os.symlink(file.resolve(), folder / file.name)
    meta = folder / "batches.meta"
    content = bytearray(meta.read_bytes())
    content[40] ^= 1
    meta.unlink()
    meta.write_bytes(content)
    with pytest.raises(InputError, match=r"batches\.meta is damaged") as error:
        cifar10(root=str(tmp_path), **SETTINGS)
    assert "missing" not in str(error.value)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder served on the loopback interface, and its address."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/cifar-10-python.tar.gz"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


def test_download_fetches_checks_and_unpacks_the_archive(
    mirror: tuple[Path, str], data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, address = mirror
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(data_root / "cifar-10-batches-py", arcname="cifar-10-batches-py")
    # the real files in a new archive, whose checksum is not the published one
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", download.md5_of(archive))
    dead = "http://127.0.0.1:9/cifar-10-python.tar.gz"
    task = cifar10(root=str(tmp_path / "data"), **SETTINGS | {"fetch": True, "mirrors": [dead, address]})
    assert len(task.train.labels) == 50_000


def test_an_archive_that_is_not_the_published_one_is_refused_by_host_and_checksum(mirror: tuple[Path, str], tmp_path: Path):
    folder, address = mirror
    (folder / "cifar-10-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"127\.0\.0\.1.*checksum.*c58f30108f718f92721af3b95e74349a"):
        cifar10(root=str(tmp_path / "data"), **SETTINGS | {"fetch": True, "mirrors": [address]})


def test_the_constants_are_the_papers():
    assert [round(255 * value, 1) for value in (*MEAN, *STD)] == [125.3, 123.0, 113.9, 63.0, 62.1, 66.7]
