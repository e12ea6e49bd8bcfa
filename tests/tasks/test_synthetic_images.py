"""Synthetic images: reproducible, balanced, and different between classes in shape only."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pufferfish_bench.tasks.images.synthetic_images import CLASSES, draw_images

CHANCE = 1 / len(CLASSES)
STRENGTH = 3  # of the ridge, for each training image: the best for the pixels of 0.03, 0.3, 3 and 10


@pytest.fixture(scope="module")
def train() -> tuple[Tensor, Tensor]:
    return draw_images(2000, seed=1)


@pytest.fixture(scope="module")
def unseen() -> tuple[Tensor, Tensor]:
    return draw_images(1000, seed=2)


def mean_colour(images: Tensor) -> Tensor:
    return images.float().mean(dim=(2, 3))


def pixels(images: Tensor) -> Tensor:
    return images.float().flatten(1)


def spectrum(images: Tensor) -> Tensor:
    """The amplitudes of the Fourier transform: shape and texture, independent of position."""
    lightness = images.float().mean(dim=1)
    return torch.fft.rfft2(lightness - lightness.mean(dim=(1, 2), keepdim=True)).abs().log1p().flatten(1)


def probe(features: Callable[[Tensor], Tensor], train: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor]) -> float:
    """Accuracy on `unseen` of ridge regression from the standardised features of `train` to its classes."""
    known, asked = features(train[0]), features(unseen[0])
    mean, deviation = known.mean(dim=0), known.std(dim=0) + 1e-6
    known, asked = (known - mean) / deviation, (asked - mean) / deviation
    classes = F.one_hot(train[1]) - CHANCE
    # over images, not features: there are more pixels than images
    dual = torch.linalg.solve(known @ known.T + STRENGTH * len(known) * torch.eye(len(known)), classes)
    return ((asked @ (known.T @ dual)).argmax(dim=1) == unseen[1]).float().mean().item()


def test_the_seed_determines_the_images():
    images, labels = draw_images(40, seed=3)
    again, same_labels = draw_images(40, seed=3)
    others, other_labels = draw_images(40, seed=4)
    assert torch.equal(images, again)
    assert torch.equal(labels, same_labels)
    assert not torch.equal(labels, other_labels)
    assert not (images == others).flatten(1).all(dim=1).any()


def test_global_random_state_is_neither_read_nor_changed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images, _ = draw_images(10, seed=3)
        untouched = torch.rand(5)
        torch.manual_seed(0)
        assert torch.equal(untouched, torch.rand(5))
        again, _ = draw_images(10, seed=3)  # from another global state
        assert torch.equal(images, again)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 150), seed=st.integers(0, 2**31))
def test_classes_are_balanced_at_every_count(count: int, seed: int):
    images, labels = draw_images(count, seed=seed)
    assert images.shape == (count, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert labels.shape == (count,)
    assert labels.dtype == torch.int64
    sizes = torch.bincount(labels, minlength=len(CLASSES))
    assert len(sizes) == len(CLASSES) == len(set(CLASSES)) == 10
    assert sizes.max() - sizes.min() <= 1


def test_labels_are_shuffled(train):
    _, labels = train
    assert 0.05 < (labels[1:] == labels[:-1]).float().mean() < 0.2  # 0.1 if neighbours are independent


def test_brightness_uses_the_whole_range_and_is_rarely_clipped(train):
    images, _ = train
    assert images.min() == 0
    assert images.max() == 255
    assert ((images == 0) | (images == 255)).float().mean() < 0.1


def test_the_mean_colour_says_almost_nothing_about_the_class(train, unseen):
    assert probe(mean_colour, train, unseen) < 2 * CHANCE


def test_the_classes_are_not_linearly_separable_by_pixels(train, unseen):
    assert probe(pixels, train, unseen) < 0.5


def test_the_classes_can_be_learnt_from_shape_and_texture(train, unseen):
    assert probe(spectrum, train, unseen) > 4 * CHANCE


def test_a_mirrored_image_keeps_its_class(train, unseen):
    images, labels = unseen
    assert abs(probe(spectrum, train, unseen) - probe(spectrum, train, (images.flip(3), labels))) < 0.05
