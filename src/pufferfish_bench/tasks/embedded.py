"""Tasks on data that the package draws itself."""

from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count, Share
from pufferfish_bench.tasks import grammar
from pufferfish_bench.tasks.images import Images
from pufferfish_bench.tasks.language import Carry, NextWord, perplexity
from pufferfish_bench.tasks.memory import in_memory
from pufferfish_bench.tasks.synthetic import synthetic_images
from pufferfish_bench.world import World

TEST_SEED = 1 << 40  # apart from every seed of a training set: all runs are judged by the same images


def images(
    *,
    train_images: Count,
    test_images: Count,
    classes: Count,
    label_smoothing: Share,
    batch_size: Count,
    test_batch_size: Count,
    seed: int,
    world: World,
) -> Images:
    """Classify synthetic images. The data is the same for all seeds; a seed is an order and a start, as with real data."""
    for name, count in (("train_images", train_images), ("test_images", test_images)):
        if count < 1:
            raise InputError(f"dataset.{name}={count} must be at least 1")
    return in_memory(
        train=synthetic_images(train_images, seed=0), test=synthetic_images(test_images, seed=TEST_SEED),
        classes=classes, mean=(0.5,) * 3, std=(0.25,) * 3, label_smoothing=label_smoothing, batch_size=batch_size,
        test_batch_size=test_batch_size, seed=seed, world=world,
    )  # fmt: skip


def text(
    *, train_words: Count, test_words: Count, vocabulary: Count, batch_size: Count, test_batch_size: Count, segment: Count,
    carry: Carry,
    world: World,
) -> NextWord:  # fmt: skip
    """Model the text of a small grammar. No model can have a lower perplexity than the grammar itself, but for luck."""
    if vocabulary != len(grammar.WORDS):
        raise InputError(f"dataset.vocabulary={vocabulary}, but the grammar has {len(grammar.WORDS)} words")
    task = NextWord(
        train=grammar.text(train_words, seed=0), val=grammar.text(test_words, seed=TEST_SEED),
        test=grammar.text(test_words, seed=TEST_SEED + 1), batch_size=batch_size, test_batch_size=test_batch_size,
        segment=segment, carry=carry, world=world,
    )  # fmt: skip
    task.note = f"no model of this text can have a perplexity below {perplexity(grammar.entropy_rate()):.2f}, but for luck"
    return task
