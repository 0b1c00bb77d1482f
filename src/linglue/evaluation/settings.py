"""What all evaluations record and say about how their numbers came about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.errors import LinGlueError
from linglue.evaluation.estimators import CONFIDENCE, MAX_ITERATIONS, RobustSettings
from linglue.evaluation.methods import Prepared
from linglue.sfm.extract import ExtractConfig

TIME_NOTE = (
    "time: median per pair of matching alone, features given; absolute times depend on the machine and its load, "
    "compare only methods of one run"
)


def common_settings(
    task: str, extract: ExtractConfig, methods: Mapping[str, Mapping[str, Any]], robust: RobustSettings | None = None
) -> dict[str, Any]:
    """What every task records about a run.

    Args:
        task: its name.
        extract: the common front-end.
        methods: settings by method.
        robust: of the robust estimators, if any.
    """
    settings = {
        "task": task,
        **extract.settings(),
        "methods": dict(methods),
        "versions": {"numpy": np.__version__, "torch": torch.__version__},
    }
    if robust is not None:
        settings |= {"threshold": robust.threshold, "seed": robust.seed}
        settings |= {"confidence": CONFIDENCE, "max_iterations": MAX_ITERATIONS}
    return settings


def size_note(prepared: Prepared, extract: ExtractConfig) -> str:
    """How features were taken, in words.

    Args:
        prepared: the methods, each with its front-end.
        extract: the front-end where there are no methods.
    """
    configs = [config for config, _ in prepared.by_front_end()] or [extract]
    names = ", ".join(dict.fromkeys(config.extractor().kind for config in configs))
    first = configs[0]
    size = f"longer side at most {first.resize}" if first.resize else "original size"
    places = " (of sift: places, some with several orientations)" if "sift" in names else ""
    return f"{names}, at most {first.max_keypoints} keypoints{places}, {size}"


def extraction_note(prepared: Prepared, extract: ExtractConfig, methods: Mapping[str, Mapping[str, Any]]) -> str:
    """How features were taken, and how many pairs there are.

    Args:
        prepared: the methods, each with its front-end.
        extract: the common front-end.
        methods: of a summary: values by method.
    """
    first = next(iter(methods.values()))
    kept = sorted({round(values["keypoints"]) for values in methods.values()})
    mean = f"{kept[0]}" if len(kept) == 1 else f"{kept[0]} to {kept[-1]}"
    return (
        f"settings: {size_note(prepared, extract)} ({mean} keypoints on average); {first['pairs']} pairs, "
        "means per pair"
    )


def robust_note(robust: RobustSettings) -> str:
    """The settings of a robust estimator, in words.

    Args:
        robust: threshold and seed.
    """
    return (
        f"threshold {robust.threshold:g} px, confidence {CONFIDENCE}, at most {MAX_ITERATIONS} iterations, "
        f"seed {robust.seed}"
    )


def check_scene_names(scenes: Sequence[Path]) -> None:
    """Refuse scenes that would share a folder of results.

    Args:
        scenes: folders.
    """
    if not scenes:
        raise LinGlueError("no scene to measure, expected at least one")
    twice = [name for name, times in Counter(scene.resolve().name for scene in scenes).items() if times > 1]
    if twice:
        raise LinGlueError(f"{twice[0]}: two of the given scenes have this name, expected different ones")
