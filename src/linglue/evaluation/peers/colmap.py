"""COLMAP's own matcher for SIFT on the CPU, with its default settings: ratio test and mutual nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from linglue.core.fingerprint import code_sha256
from linglue.errors import LinGlueError
from linglue.geometry.colmap import bytes_from_root_sift, quiet_pycolmap
from linglue.types import Features, Matches

if TYPE_CHECKING:
    from linglue.matcher import MatcherConfig


class ColmapSift:
    """Matcher `colmap-sift`: what `colmap exhaustive_matcher` finds, without its geometric verification."""

    def __init__(self, config: MatcherConfig) -> None:
        if config.features != "sift":
            raise LinGlueError(f"matcher colmap-sift cannot match {config.features!r} features, expected sift")
        self._pycolmap = quiet_pycolmap("matcher colmap-sift")
        options = self._pycolmap.FeatureMatchingOptions()
        options.use_gpu = False
        options.num_threads = torch.get_num_threads()
        self._matcher = self._pycolmap.FeatureMatcher.create(options)

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {"pycolmap": self._pycolmap.__version__, "code": code_sha256("evaluation/peers/colmap.py")}

    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches between the features of two images, the closest descriptors first.

        Args:
            features0: SIFT of image 0.
            features1: SIFT of image 1.
        """
        if min(len(features0), len(features1)) == 0:
            return Matches.of(features0, features1, torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0))
        kind, none = (
            self._pycolmap.FeatureExtractorType.SIFT,
            self._pycolmap.FeatureKeypoints(),
        )  # positions are not asked
        stored0, stored1 = (
            self._pycolmap.FeatureDescriptors(kind, bytes_from_root_sift(f.descriptors)) for f in (features0, features1)
        )
        found = self._matcher.match(none, stored0, none, stored1).astype(np.int64)  # (K, 2)
        cosine = (features0.descriptors[found[:, 0]] * features1.descriptors[found[:, 1]]).sum(axis=1)  # (K,)
        order = np.argsort(-cosine, kind="stable")
        return Matches.of(
            features0, features1, torch.from_numpy(found[order]), torch.from_numpy(cosine[order].clip(0, 1))
        )
