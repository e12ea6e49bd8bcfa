"""Multi30k from {train,val,test_2016_flickr}.{de,en}, German to English, in the words of spaCy's blank tokenisers."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from pufferfish_bench import records
from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.pairs import SPECIAL, Corpus, Triple, Words, paired, tokenise

SOURCE, TARGET = "de", "en"
PARTS = ("train", "val", "test_2016_flickr")
FILES = [f"{part}.{language}" for part in PARTS for language in (SOURCE, TARGET)]

Sentences = dict[str, list[list[str]]]  # file -> its lines, each as words

log = logging.getLogger(__name__)


def corpus(folder: Path, *, vocabulary: int, longest: int = 100, least: int = 3, cache: Path | None) -> Corpus:
    """The corpus: training pairs of at most `longest` words a side, and a vocabulary of the words said `least` times in them.

    `vocabulary` is the size that is expected. The words are kept in the directory `cache`, if there is one, for the next time.
    """
    contents = read(folder)
    lines = {name: [line.strip() for line in text_files.lines(folder / name, contents[name])] for name in FILES}
    for part in PARTS:
        source, target = (len(lines[f"{part}.{language}"]) for language in (SOURCE, TARGET))
        if source != target:
            raise InputError(f"{folder}: {part}.{SOURCE} has {source:,} lines and {part}.{TARGET} {target:,}: they are not pairs")

    if cache is None:
        sentences = tokenised(lines)
    else:
        path = cache / f"multi30k-{key(contents)}.json"
        sentences = kept(path)
        if sentences is None:
            sentences = tokenised(lines)
            keep(path, sentences)

    triples = {part: triples_of(sentences, lines, part) for part in PARTS}
    triples["train"] = [triple for triple in triples["train"] if max(len(triple[0]), len(triple[1])) <= longest]
    english = frequent((target for _, target, _ in triples["train"]), least)
    german = frequent((source for source, _, _ in triples["train"]), least)
    words = list(dict.fromkeys([*SPECIAL, *english, *german]))  # each word where it first stands
    if len(words) != vocabulary:
        raise InputError(
            f"dataset.vocabulary={vocabulary}, but {folder} gives {len(words):,}: {len(SPECIAL)} special ones and what is said "
            f"at least {least} times in training, {len(english):,} English and {len(german):,} German words, those in both once"
        )
    train, val, test = (paired(triples[part], words) for part in PARTS)
    return Corpus(vocabulary=words, train=train, val=val, test=test, languages=(SOURCE, TARGET))


def read(folder: Path) -> dict[str, bytes]:
    """The six files; those that are missing are named."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"Multi30k is not in {folder.resolve()}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Give "
            "its place with data_root=DIR or PUFFERFISH_DATA, or use the embedded data: dataset=synthetic_pairs"
        )
    return {name: (folder / name).read_bytes() for name in FILES}


def triples_of(sentences: Sentences, lines: dict[str, list[str]], part: str) -> list[Triple]:
    """Source, target and reference of each pair of a part."""
    source, target = f"{part}.{SOURCE}", f"{part}.{TARGET}"
    return list(zip(sentences[source], sentences[target], lines[target], strict=True))


def frequent(sentences: Iterable[Words], least: int) -> list[str]:
    """The words said at least so often, the most frequent first, equally frequent ones by the alphabet."""
    counts = Counter(word for sentence in sentences for word in sentence)
    return sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))


def tokenised(lines: dict[str, list[str]]) -> Sentences:
    """All lines as words."""
    log.info(f"parting {sum(map(len, lines.values())):,} sentences of Multi30k into words: this takes some seconds")
    return {name: tokenise(name.rpartition(".")[2], lines[name]) for name in FILES}


def key(contents: dict[str, bytes]) -> str:
    """Another one for other files or another spaCy."""
    digest = hashlib.sha256(f"spacy={version('spacy')}".encode())
    for name in FILES:
        digest.update(f"\n{name} {len(contents[name])}\n".encode())
        digest.update(contents[name])
    return digest.hexdigest()[:16]


def checksum(sentences: Sentences) -> str:
    return hashlib.sha256(json.dumps(sentences).encode()).hexdigest()


def keep(path: Path, sentences: Sentences) -> None:
    """Write the words for the next time, if that can be done: without them it only takes longer."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        records.replace_file(path, json.dumps({"sha256": checksum(sentences), "sentences": sentences}) + "\n")
    except OSError as failure:  # read-only, full, or another rank was quicker
        log.debug(f"the words of Multi30k are not kept: {failure}")


def kept(path: Path) -> Sentences | None:
    """The words that were written, if they are there and whole."""
    try:
        content = records.read_json(path)
        return content["sentences"] if content["sha256"] == checksum(content["sentences"]) else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, no JSON, or other JSON
        return None
