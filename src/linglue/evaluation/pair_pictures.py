"""Pictures of graf 1→3 for the report of a suite: matches beside a peer's, neighborhoods, attention."""

from __future__ import annotations

from pathlib import Path

from linglue.errors import LinGlueError
from linglue.evaluation import figures
from linglue.evaluation.methods import prepare
from linglue.evaluation.sections import Suite
from linglue.evaluation.store import Predictions, predict
from linglue.evaluation.tasks.homography import HomographyPair, load_pairs
from linglue.matcher import Matcher

BESIDE = (  # ours, and a peer
    ("linpoint:linglue", "superpoint:superglue-10"),
    ("aliked:linglue", "aliked:lightglue"),
    ("sift:linglue", "sift:adalam"),
)
INSIDE = ("superpoint", "sift")  # whose network is looked into: the first that has layers


def draw(suite: Suite) -> list[Path]:
    """All pictures; those whose peers or networks are not at hand are left out.

    Args:
        suite: whose section of homographies is finished.
    """
    truths, _ = load_pairs(suite.planes("oxford"))
    truth = next((t for t in truths if t.pair.name == "v_graf 1-3"), truths[0])
    folder = suite.results / "homography"
    pictures = [_beside(suite, truth, methods, folder) for methods in BESIDE]
    return [*(path for path in pictures if path is not None), *_inside(suite, truth, folder)]


def _beside(suite: Suite, truth: HomographyPair, methods: tuple[str, str], folder: Path) -> Path | None:
    """The matches of two methods, one above the other; None where one of them lacks its weights."""
    try:
        prepared = prepare(methods, suite.extract())
    except LinGlueError:
        return None
    if prepared.missing:
        return None
    _, predictions = predict(suite.work / "oxford", [truth.pair], prepared)
    path = folder / f"matches-{methods[0].partition(':')[0]}.jpg"
    figures.draw_beside(path, truth, {name: found[0] for name, found in predictions.items()})
    return path


def _inside(suite: Suite, truth: HomographyPair, folder: Path) -> list[Path]:
    """Neighborhoods and attention of a network that has layers."""
    images = (truth.pair.image0, truth.pair.image1)
    for kind in INSIDE:
        try:
            prepared = prepare([f"{kind}:linglue"], suite.extract())
        except LinGlueError:
            continue
        matcher = Matcher.for_features(kind)
        if not matcher.network.config.linear_blocks or not matcher.network.config.pairwise_layers:
            continue
        predict(suite.work / "oxford", [truth.pair], prepared)
        extract = next(iter(prepared.ready.values())).extract
        with Predictions(suite.work / "oxford", truth.pair.group, extract).workspace.features() as store:
            features = [store.get(image.name) for image in images]
        paths = [folder / "neighborhoods.jpg", folder / "attention.jpg"]
        figures.draw_neighborhoods(paths[0], matcher, images, features)
        matched = matcher.match(features[0], features[1]).indices
        if not len(matched):
            return paths[:1]
        figures.draw_attention(paths[1], matcher, images, features, int(matched[0, 0]))
        return paths
    return []
