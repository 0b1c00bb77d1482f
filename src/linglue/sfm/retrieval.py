"""Which images look alike: a global descriptor per image (VLAD) made from the local features that are there anyway.

The vocabulary is learned from the images at hand, so any kind of features will do and nothing is downloaded. An image
is the sum of what its descriptors differ from their nearest word, each word's sum of length one (Arandjelović and
Zisserman, All about VLAD, 2013). Whitening, which that paper learns from a large independent collection, is left out:
learned from the few hundred images at hand it makes all of them equally far apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2, vq

from linglue.core.atomic import atomic_path
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair, make_pair
from linglue.types import Features, FloatArray

LoadFeatures = Callable[[str], Features]

TOP = 20  # neighbours per image
WORDS = 128
SAMPLE = 65_536  # descriptors the words are learned from
SAMPLE_PER_WORD = 16  # at least: a word made of a single descriptor says nothing about it
SAMPLE_PER_IMAGE = 256  # at least, where an image has so many: the sample of a large collection is some of its images
ITERATIONS = 20
BLOCK = 256  # images compared with all others at a time
PROGRESS_DELAY = 2.0  # seconds


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Visual words, and the kind of features they were learned from."""

    words: FloatArray  # (W, D)
    kind: str

    @classmethod
    def learn(cls, names: Sequence[str], load: LoadFeatures, count: int = WORDS, seed: int = 0) -> Vocabulary:
        """Words from a bounded random sample of the images' descriptors.

        Args:
            names: of the images.
            load: gives the features of one of them.
            count: of words at most.
            seed: of the sample and the clustering.
        """
        random = np.random.default_rng(seed)
        per_image = max(SAMPLE_PER_IMAGE, SAMPLE // max(len(names), 1))
        sample: list[FloatArray] = []
        missing, kind = SAMPLE, "unknown"
        with _progress(random.permutation(len(names)).tolist(), "vocabulary") as order:
            for i in order:
                features = load(names[i])
                if len(features) == 0:
                    continue
                chosen = random.permutation(len(features))[:per_image]
                sample.append(_unit(features.descriptors[chosen]))
                missing, kind = missing - len(chosen), features.kind
                if missing <= 0:
                    break
        if not sample:
            raise LinGlueError(f"none of the {len(names)} images has a keypoint, retrieval needs at least one")
        descriptors = np.concatenate(sample)  # (S, D)
        count = max(1, min(count, len(descriptors) // SAMPLE_PER_WORD))
        start = descriptors[random.permutation(len(descriptors))[:count]]  # (W, D)
        with warnings.catch_warnings():
            # Equal descriptors leave words without any. Such a word stays where it is and does no harm.
            warnings.filterwarnings("ignore", message="One of the clusters is empty")
            words, _ = kmeans2(descriptors, start, iter=ITERATIONS, minit="matrix")
        return cls(words.astype(np.float32), kind)

    def describe(self, features: Features) -> FloatArray:
        """(W·D,) of unit length, or zeros for an image without keypoints; the dot product says how alike two are."""
        if features.kind != self.kind:
            raise LinGlueError(f"features are of kind {features.kind!r}, this vocabulary was made of {self.kind!r}")
        if features.dim != self.words.shape[1]:
            raise LinGlueError(f"descriptors have {features.dim} entries, this vocabulary's {self.words.shape[1]}")
        sums = np.zeros_like(self.words)  # (W, D)
        if len(features):
            descriptors = _unit(features.descriptors)  # (N, D)
            word, _ = vq(descriptors, self.words, check_finite=False)  # (N,)
            np.add.at(sums, word, descriptors - self.words[word])
        return _unit(_unit(sums).ravel())  # words first: a repeated pattern fills one word and must not outweigh all


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Finds the images of a collection that look like a given one. Images without keypoints are not part of it."""

    names: tuple[str, ...]  # N, sorted
    descriptors: FloatArray  # (N, W·D)
    vocabulary: Vocabulary

    @classmethod
    def build(cls, names: Iterable[str], load: LoadFeatures, words: int = WORDS, seed: int = 0) -> Retrieval:
        """Learn the vocabulary and describe all images.

        Args:
            names: of the images.
            load: gives the features of one of them; nothing is kept.
            words: of the vocabulary at most.
            seed: of everything random.
        """
        names = sorted(set(names))
        vocabulary = Vocabulary.learn(names, load, words, seed)
        descriptors = np.empty((len(names), vocabulary.words.size), dtype=np.float32)
        described: list[str] = []
        with _progress(names, "describing") as progress:
            for name in progress:
                features = load(name)
                if len(features):
                    descriptors[len(described)] = vocabulary.describe(features)
                    described.append(name)
        return cls(tuple(described), descriptors[: len(described)], vocabulary)

    def describe(self, features: Features) -> FloatArray:
        """The global descriptor (W·D,) of any image, also one that is not in the collection."""
        return self.vocabulary.describe(features)

    def nearest(self, descriptor: FloatArray, top: int = TOP) -> list[tuple[str, float]]:
        """The images most similar to another.

        Args:
            descriptor: (W·D,) of `describe`.
            top: at most so many.

        Returns:
            Names with similarity in [−1, 1], best first; none for an image without keypoints.
        """
        if not descriptor.any():
            return []
        similarity = self.descriptors @ descriptor  # (N,)
        order = np.argsort(-similarity, kind="stable")[:top]
        return [(self.names[i], float(similarity[i])) for i in order]

    def partners(self, names: Iterable[str], top: int = TOP) -> dict[str, list[str]]:
        """The most similar others of images of the collection.

        Args:
            names: of the images; those that are not in the collection are passed over.
            top: at most so many of each.

        Returns:
            By name, best first.
        """
        index = {name: i for i, name in enumerate(self.names)}
        queries = [index[name] for name in names if name in index]
        found: dict[str, list[str]] = {}
        with _progress(range(0, len(queries), BLOCK), "neighbours", "block") as blocks:
            for start in blocks:
                block = queries[start : start + BLOCK]
                similarity = self.descriptors[block] @ self.descriptors.T  # (BLOCK, N)
                similarity[np.arange(len(block)), block] = -np.inf
                order = np.argsort(-similarity, axis=1, kind="stable")[:, : min(top, len(self.names) - 1)]
                for query, others in zip(block, order, strict=True):
                    found[self.names[query]] = [self.names[i] for i in others]
        return found

    def pairs(self, top: int = TOP) -> list[Pair]:
        """Every image with its `top` most similar ones, sorted."""
        partners = self.partners(self.names, top)
        return sorted({make_pair(name, other) for name, others in partners.items() for other in others})

    def save(self, path: str | Path) -> None:
        """Write all of it as .npz."""
        with atomic_path(path) as partial, partial.open("wb") as file:
            np.savez(
                file,
                names=np.array(self.names, dtype=np.str_),
                descriptors=self.descriptors,
                words=self.vocabulary.words,
                kind=np.array(self.vocabulary.kind),
            )

    @classmethod
    def load(cls, path: str | Path) -> Retrieval:
        """Read what `save` wrote."""
        try:
            with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                vocabulary = Vocabulary(file["words"], str(file["kind"]))
                return cls(tuple(file["names"].tolist()), file["descriptors"], vocabulary)
        except Exception as error:  # zip and numpy raise many unrelated types on damaged files
            raise LinGlueError(f"{path}: missing, damaged or not a file of Retrieval.save") from error


def _unit(vectors: FloatArray) -> FloatArray:
    """The vectors (…, D) with length one; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(length, np.finfo(np.float32).tiny)


def _progress(work: Sequence[int] | Sequence[str], what: str, unit: str = "image") -> Any:
    return progress(work, desc=what, unit=unit, delay=PROGRESS_DELAY)
