"""ImageNet, or a subset of its classes, from the usual folders {train,val}/<wnid>/*."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from PIL import Image

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, Natural, Positive, Share
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks.images import image_folder
from pufferfish_bench.tasks.images.crops import CentreCrop, RandomCrop
from pufferfish_bench.tasks.images.image_folder import CachedPictures, Pictures
from pufferfish_bench.tasks.images.loader import Loader
from pufferfish_bench.tasks.images.task import ImageClassification, check_batch_sizes

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

Decode = Literal["exact", "scaled"]


def imagenet(
    *,
    root: str,
    folder: str,
    classes: Count,
    image_size: Count,
    crop_area: Sequence[float],
    decode: Decode,
    label_smoothing: Share,
    batch_size: Count,
    test_batch_size: Count,
    tolerated_unreadable: Share,
    max_megapixels: Positive,
    cache: bool,
    workers: Natural,
    prefetch: Count,
    seed: Natural,
    world: World,
    validation_share: Share | None = None,
) -> ImageClassification:
    """Classify the pictures in `root`/`folder`: all classes of ImageNet or some of them, or pictures of the user's own.

    With `validation_share`, the folder may have the classes without train/ and val/ (see image_folder.train_and_val).
    """
    check_decode(decode, cache)
    check_batch_sizes(batch_size, test_batch_size)
    if not isinstance(crop_area, Sequence) or len(crop_area) != 2 or not 0 < crop_area[0] <= crop_area[1] <= 1:
        raise InputError(f"dataset.crop_area={crop_area} must be two numbers with 0 < smallest <= largest <= 1")
    for name, value, least in (("image_size", image_size, 1), ("loader.workers", workers, 0), ("loader.prefetch", prefetch, 1)):
        if value < least:
            raise InputError(f"dataset.{name}={value} must be at least {least}")
    most = 2 * Image.MAX_IMAGE_PIXELS / 1e6 if Image.MAX_IMAGE_PIXELS else math.inf  # Pillow refuses larger ones
    if not 0 < max_megapixels <= most:
        raise InputError(
            f"dataset.loader.max_megapixels={max_megapixels} must be above 0 and at most {most:.0f}, which is Pillow's limit"
        )
    parts = image_folder.train_and_val(Path(root) / folder, classes, validation_share)
    if cache:
        image_folder.check_cache_fits([path for paths, _ in parts for path in paths], max_megapixels)
    dataset = CachedPictures if cache else partial(Pictures, scaled=decode == "scaled")
    train, test = (dataset(*part, max_megapixels=max_megapixels) for part in parts)
    loading = {"workers": workers, "prefetch": prefetch, "tolerated": tolerated_unreadable, "world": world}
    return ImageClassification(
        train=Loader(train, RandomCrop(image_size, tuple(crop_area)), batch_size=batch_size, seed=seed, **loading),
        test=Loader(test, CentreCrop(image_size), batch_size=test_batch_size, seed=None, **loading),
        classes=classes, mean=MEAN, std=STD, label_smoothing=label_smoothing, top=(5,), world=world,
    )  # fmt: skip


def check_decode(decode: str, cache: bool) -> None:
    """Refuse an unknown word, and scaled decoding of cached pictures: the cache must not change a pixel."""
    if decode not in get_args(Decode):
        raise InputError(f"dataset.decode={decode} is not known; allowed: {', '.join(get_args(Decode))}")
    if decode == "scaled" and cache:
        raise InputError(
            "dataset.decode=scaled does not work with dataset.loader.cache=true, which keeps pictures decoded at full size: "
            "use dataset.loader.cache=false, or dataset.decode=exact"
        )
