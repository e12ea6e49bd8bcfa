"""Translation: batches of padded sentence pairs, perplexity after every epoch, BLEU of the final model."""

import logging
import math
from collections.abc import Callable, Generator
from typing import Annotated, Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, Natural, Range, Share
from pufferfish_bench.core import FinalResults, Task
from pufferfish_bench.distributed.world import World
from pufferfish_bench.records.files import VOCABULARY
from pufferfish_bench.tasks import sharding
from pufferfish_bench.tasks.label_smoothing import torch_label_smoothing
from pufferfish_bench.tasks.text.task import perplexity
from pufferfish_bench.tasks.translation import beam_search
from pufferfish_bench.tasks.translation.corpus import END, PAD, START, Corpus, Pairs, decode
from pufferfish_bench.tasks.translation.tokenisation import detokenise

log = logging.getLogger(__name__)

Batch = tuple[Tensor, Tensor]  # source and target (sentences, words), each with START and END, padded
POOL = 50  # with `bucketed`: batches whose sentences are sorted by length together


class Translation(Task):
    """Machine translation, trained with teacher forcing. With `bucketed`, a batch holds sentences of similar length."""

    metric = "val_ppl"
    higher_is_better = False
    results_of_best = True  # BLEU of the best epoch, too

    def __init__(
        self,
        *,
        corpus: Corpus,
        batch_size: Count,
        test_batch_size: Count,
        bucketed: bool,
        label_smoothing: Share,
        beam: Count,
        alpha: Annotated[float, Range(0, beam_search.MOST_ALPHA)],
        longest: Count,
        positions: Count,
        seed: Natural,
        world: World,
    ):
        least = {
            "batch_size": batch_size,
            "dataset.test_batch_size": test_batch_size,
            "dataset.beam": beam,
            "dataset.longest": longest,
        }
        for name, value in least.items():
            if value < 1:
                raise InputError(f"{name}={value} must be at least 1")
        if not 0 <= alpha <= beam_search.MOST_ALPHA:
            raise InputError(f"dataset.alpha={alpha} must be from 0 to {beam_search.MOST_ALPHA}")
        needed = max(len(sentence) for part in (corpus.train, corpus.val, corpus.test) for sentence in part.source + part.target)
        if max(longest, needed) > positions:
            raise InputError(
                f"model.net.positions={positions} must be at least {max(longest, needed)}: dataset.longest={longest}, and the "
                f"longest sentence of the data needs {needed} with its start and end"
            )
        self.corpus = corpus
        self.batch_size = batch_size
        self.test_batch_size = test_batch_size
        self.bucketed = bucketed
        self.smoothing = torch_label_smoothing(label_smoothing, len(corpus.vocabulary))
        self.search = {"beam": beam, "alpha": alpha, "longest": longest}
        self.seed = seed
        self.world = world
        self.slices = sharding.training_batches(len(corpus.train), batch_size, rank=world.rank, size=world.size)

    def steps(self, epoch: int) -> int:
        return len(self.slices)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        for chosen in self.order(epoch)[start:]:
            yield self.padded(self.corpus.train, chosen)

    def order(self, epoch: int) -> list[numpy.ndarray]:
        """The indices of the pairs in each batch of an epoch. With `bucketed` they have similar lengths, on all ranks."""
        random = numpy.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.corpus.train))
        if not self.bucketed:
            return [order[batch] for batch in self.slices]
        rank, size = self.world.rank, self.world.size
        lengths = numpy.array([len(sentence) for sentence in self.corpus.train.target])
        order, per_step = order[: len(order) - len(order) % size], self.batch_size * size
        pools = [order[first : first + POOL * per_step] for first in range(0, len(order), POOL * per_step)]
        pools = [pool[lengths[pool].argsort(kind="stable")] for pool in pools]
        batches = [pool[first : first + per_step][rank::size] for pool in pools for first in range(0, len(pool), per_step)]
        return [batches[number] for number in random.permutation(len(batches))]

    def padded(self, pairs: Pairs, chosen: Any) -> Batch:
        sides = ([side[number] for number in chosen] for side in (pairs.source, pairs.target))
        source, target = (self.world.on_device(pad_sequence(side, batch_first=True, padding_value=PAD)) for side in sides)
        return source, target

    def loss(self, model: Callable[..., Tensor], batch: Batch) -> Tensor:
        return self.cross_entropy(model, batch, label_smoothing=self.smoothing)

    def cross_entropy(self, model: Callable[..., Tensor], batch: Batch, **options: Any) -> Tensor:
        """The cross-entropy of each word given the previous ones, without the padding."""
        source, target = batch
        logits = model(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), target[:, 1:].flatten(), ignore_index=PAD, **options)

    def count(self, batch: Batch) -> Tensor:
        return (batch[1][:, 1:] != PAD).sum()

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """Each part keeps the padding of the batch."""
        source, target = batch
        return [(source[part], target[part]) for part in sharding.parts_of(len(target), parts)]

    def training_figures(self, mean_loss: float) -> dict[str, float]:
        """Training perplexity with label smoothing and dropout, as in the paper: it can be above that on validation data."""
        return {"train_ppl": perplexity(mean_loss)}

    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        return {
            f"{name}_ppl": self.perplexity_of(model, pairs)
            for name, pairs in (("val", self.corpus.val), ("test", self.corpus.test))
        }

    def perplexity_of(self, model: Callable[..., Tensor], pairs: Pairs) -> float:
        sums = torch.zeros(2, dtype=torch.float64, device=self.world.device)  # sum of the losses, number of words
        mine = sharding.evaluation_range(len(pairs), rank=self.world.rank, size=self.world.size)
        for first in range(mine.start, mine.stop, self.test_batch_size):
            batch = self.padded(pairs, range(first, min(first + self.test_batch_size, mine.stop)))
            sums[0] += self.cross_entropy(model, batch, reduction="sum")
            sums[1] += self.count(batch)
        self.world.allreduce(sums)
        total, words = self.world.on_host(sums).tolist()
        return perplexity(total / words if words else math.nan)

    def final_results(self, model: nn.Module) -> FinalResults:
        """BLEU on the validation and test set, and the translations themselves."""
        import sacrebleu

        measure = sacrebleu.BLEU(lowercase=True)
        figures: dict[str, Any] = {}
        files = {VOCABULARY: "".join(f"{word}\n" for word in self.corpus.vocabulary)}
        for name, pairs in (("val", self.corpus.val), ("test", self.corpus.test)):
            log.info(f"translating the {len(pairs.source):,} sentences of {name}")
            translations = self.translate(model, pairs.source)
            figures[f"{name}_bleu"] = measure.corpus_score(translations, [pairs.references]).score
            files[f"{name}.translations.txt"] = "".join(f"{line}\n" for line in translations)
        return FinalResults(figures | {"bleu": str(measure.get_signature())}, files)

    def translate(self, model: nn.Module, sentences: list[Tensor]) -> list[str]:
        """The translations of all sentences, on all ranks; each rank translates a part."""
        mine = sharding.evaluation_range(len(sentences), rank=self.world.rank, size=self.world.size)
        found = beam_search.translate(
            model, [sentences[number].to(self.world.device) for number in mine], padding=PAD, start=START, end=END,
            batch_size=self.test_batch_size, **self.search,
        )  # fmt: skip
        translations = [detokenise(decode(numbers, self.corpus.vocabulary)) for numbers in found]
        return [line for part in self.world.gather(translations) for line in part]
