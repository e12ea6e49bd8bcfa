"""JPEGs decoded at a reduced size: the same boxes, never fewer pixels than the crop, and nearly the same picture."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.images import crops, image_folder
from pufferfish_bench.tasks.images.crops import CentreCrop, Crop, RandomCrop
from tests.support.pictures import assert_same_batches, batches, photograph, task

sides = st.integers(1, 2000)
seeds = st.integers(0, 10**6)
kinds = st.sampled_from([partial(RandomCrop, area=(0.08, 1.0)), CentreCrop])


def numbers(crop: Crop, seed: int) -> list[float]:
    return numpy.random.default_rng(seed).random(crop.numbers, dtype=numpy.float32).tolist()


@given(sides, sides, st.integers(1, 256), seeds, kinds)
def test_a_reduced_box_has_at_least_the_pixels_of_the_crop_and_lies_in_the_reduced_picture(
    width: int, height: int, size: int, seed: int, kind: Callable[[int], Crop]
):
    crop = kind(size)
    cut = crop.cut(width, height, numbers(crop, seed))
    reduction = crops.largest_reduction(cut)
    left, top, w, h = crops.reduced(cut.box, reduction)
    if reduction > 1:
        assert w >= cut.width
        assert h >= cut.height
    if reduction < 8:  # the next one would leave too few
        assert cut.box[2] < 2 * reduction * cut.width or cut.box[3] < 2 * reduction * cut.height
    assert 0 <= left <= left + w <= -(-width // reduction)  # decoders round the size of a reduced picture up
    assert 0 <= top <= top + h <= -(-height // reduction)
    edges = [cut.box[0], cut.box[1], cut.box[0] + cut.box[2], cut.box[1] + cut.box[3]]
    for edge, moved in zip(edges, (left, top, left + w, top + h), strict=True):
        assert abs(moved * reduction - edge) <= reduction / 2


@pytest.mark.parametrize("by", [2, 4, 8])
@pytest.mark.parametrize(("narrower", "lower"), [(0, 0), (1, 0), (0, 1)])
def test_one_pixel_too_few_in_either_direction_forbids_a_reduction(by: int, narrower: int, lower: int):
    cut = crops.Cut((0, 0, 10 * by - narrower, 10 * by - lower), 10, 10)
    assert crops.largest_reduction(cut) == (by if narrower == lower == 0 else by // 2)


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    coarse = numpy.random.default_rng(seed).integers(60, 196, size=(3, 3, 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.BICUBIC)


def saved(picture: Image.Image, path: Path, kind: str = "JPEG", **options: object) -> str:
    picture.save(path, kind, **options)
    return str(path)


def cropped(path: str, crop: Crop, drawn: list[float], *, scaled: bool) -> torch.Tensor:
    pixels, cut = image_folder.decode(path, partial(crop.cut, drawn=drawn), scaled=scaled)
    return crop.square(pixels, cut)


@settings(max_examples=60)
@given(st.integers(64, 700), st.integers(64, 700), st.sampled_from([8, 24, 64]), seeds, kinds)
def test_a_smooth_picture_is_the_same_to_a_few_grey_levels(
    tmp_path_factory: pytest.TempPathFactory, width: int, height: int, size: int, seed: int, kind: Callable[[int], Crop]
):
    path = saved(smooth(width, height, seed), tmp_path_factory.mktemp("smooth") / "picture.JPEG", quality=95)
    crop = kind(size)
    drawn = numbers(crop, seed)
    exact, scaled = (cropped(path, crop, drawn, scaled=scaled).int() for scaled in (False, True))
    # the edges of the box move by at most half a pixel of the crop, so a pixel is at most as far off as its neighbours are apart
    steps = max(int(exact.diff(dim=dim).abs().max()) for dim in (1, 2))
    assert int((scaled - exact).abs().max()) <= steps + 6
    assert float((scaled - exact).float().abs().mean()) <= steps / 2 + 2


@pytest.mark.parametrize("size", [24, 70, 150, 240])
def test_the_box_is_chosen_from_the_full_size_and_the_picture_is_decoded_at_the_reduced_size(tmp_path: Path, size: int):
    path = saved(Image.fromarray(photograph(451, 460)), tmp_path / "picture.JPEG")
    crop = RandomCrop(size, (0.9, 1.0))
    for seed in range(5):
        seen: list[tuple[int, int]] = []
        drawn = numbers(crop, seed)

        def choose(width: int, height: int, seen=seen, drawn=drawn) -> crops.Cut:
            seen.append((width, height))
            return crop.cut(width, height, drawn)

        exact, cut = image_folder.decode(path, choose)
        reduced, same = image_folder.decode(path, choose, scaled=True)
        assert seen == [(451, 460)] * 2
        assert cut == same
        by = crops.largest_reduction(cut)
        assert by == {24: 8, 70: 4, 150: 2, 240: 1}[size]
        assert exact.shape == (cut.box[3], cut.box[2], 3)
        assert reduced.shape == (*reversed(crops.reduced(cut.box, by)[2:]), 3)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "GIF"])
def test_other_formats_are_decoded_exactly(tmp_path: Path, kind: str):
    path = saved(Image.fromarray(photograph(200, 150)), tmp_path / "picture.JPEG", kind)
    for crop in (RandomCrop(16, (0.5, 1.0)), CentreCrop(16)):
        drawn = numbers(crop, 1)
        assert crops.largest_reduction(crop.cut(200, 150, drawn)) > 1
        assert torch.equal(cropped(path, crop, drawn, scaled=True), cropped(path, crop, drawn, scaled=False))


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_grey_cmyk_and_progressive_jpegs_are_reduced(tmp_path: Path, mode: str, progressive: bool):
    path = saved(smooth(320, 240).convert(mode), tmp_path / "picture.JPEG", quality=95, progressive=progressive)
    exact, _ = image_folder.decode(path)
    reduced, _ = image_folder.decode(path, lambda width, height: crops.Cut((0, 0, width, height), 30, 40), scaled=True)
    assert reduced.shape == (30, 40, 3)
    expected = exact.reshape(30, 8, 40, 8, 3).mean((1, 3))
    assert numpy.abs(reduced - expected).max() < 6


@pytest.mark.parametrize("workers", [0, 2])
def test_scaled_batches_have_the_same_order_and_can_be_resumed_at_any_step(root: Path, workers: int):
    exact, scaled = (task(root, decode=decode, image_size=12, workers=workers).train for decode in ("exact", "scaled"))
    whole = batches(scaled, epoch=2)
    others = batches(exact, epoch=2)
    assert all(torch.equal(labels, same) for (_, labels), (_, same) in zip(whole, others, strict=True))
    assert any(not torch.equal(images, other) for (images, _), (other, _) in zip(whole, others, strict=True))
    for start in range(len(whole) + 1):
        assert_same_batches(batches(scaled, epoch=2, start=start), whole[start:])
    assert_same_batches(batches(task(root, decode="scaled", image_size=12).train, epoch=2), whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decode": "fast"}, r"dataset\.decode=fast is not known; allowed: exact, scaled"),
        ({"decode": "scaled", "cache": True}, r"dataset\.decode=scaled.*dataset\.loader\.cache=true.*cache=false"),
    ],
)
def test_an_unknown_way_and_a_cache_of_full_size_pictures_are_refused(root: Path, changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        task(root, **changes)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_off_jpeg_is_unreadable_at_every_reduction(tmp_path: Path, keep: float):
    stream = io.BytesIO()
    Image.fromarray(photograph(320, 240)).save(stream, "JPEG")
    path = tmp_path / "picture.JPEG"
    path.write_bytes(stream.getvalue()[: int(keep * len(stream.getvalue()))])
    for size in (120, 60, 30):  # the top of the picture, which the file still has
        with pytest.raises(image_folder.Unreadable):
            image_folder.decode(str(path), lambda width, height, size=size: crops.Cut((0, 0, 320, 24), 3, size), scaled=True)
