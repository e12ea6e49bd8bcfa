"""Comparing corpora of sentence pairs."""

import torch

from pufferfish_bench.tasks.translation.corpus import Corpus, Pairs


def same_pairs(one: Pairs, other: Pairs) -> bool:
    tensors = zip(one.source + one.target, other.source + other.target, strict=True)
    return one.references == other.references and all(torch.equal(*both) for both in tensors)


def same(one: Corpus, other: Corpus) -> bool:
    parts = ((one.train, other.train), (one.val, other.val), (one.test, other.test))
    return one.vocabulary == other.vocabulary and one.languages == other.languages and all(same_pairs(*both) for both in parts)
