"""What of a work folder is current: the one place that every command asks before it reads matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from linglue.core.fingerprint import fingerprint
from linglue.io.pair_list import Pair, read_pairs
from linglue.sfm.store import FeatureStore, MatchRow, MatchStore
from linglue.sfm.workspace import Workspace


@dataclass(frozen=True)
class Current:
    """Images, pairs and matches as they stand."""

    counts: dict[str, int]  # keypoints by image
    pairs: list[Pair]  # of the list of pairs, those of current images; without a list, those that are matched
    dropped: list[Pair]  # of the list of pairs, those that name an image that is not there any more
    matched: dict[Pair, MatchRow]  # of the pairs, those whose matches are of these features and the last matcher

    @property
    def unmatched(self) -> list[Pair]:
        """Pairs that are still to be matched."""
        return [pair for pair in self.pairs if pair not in self.matched]

    @property
    def unpaired(self) -> list[str]:
        """Images with keypoints that no pair names."""
        paired = {name for pair in self.pairs for name in pair}
        return sorted(name for name, count in self.counts.items() if count and name not in paired)

    def problems(self) -> list[str]:
        """What is out of date, one line each."""
        told = []
        if self.dropped:
            told.append(f"{len(self.dropped)} pairs name images that are not there any more, left out")
        if self.unmatched:
            told.append(f"{len(self.unmatched)} of {len(self.pairs)} pairs are not matched as they stand, left out")
        if self.unpaired and self.pairs:
            told.append(f"{len(self.unpaired)} images are in no pair: `linglue pairs` chooses anew")
        return told


def matches_fingerprint(matched: Mapping[Pair, MatchRow]) -> str:
    """Of the matches that a model is made from."""
    return fingerprint(
        matches=[[*pair, row.features0, row.features1, row.matcher] for pair, row in sorted(matched.items())]
    )


def model_state(work: Workspace, features: FeatureStore, current: Current) -> str | None:
    """Whether the model is what features and matches would give.

    Args:
        work: the folder.
        features: its features.
        current: of `current_state`.

    Returns:
        "current", or what is wrong in a few words; None where LinGlue made no model.
    """
    notes = work.notes()
    made, mapped = notes["made"], notes.get("mapped", {})
    if work.model.name not in made:
        return None
    ours = {path.relative_to(work.folder).as_posix(): path for path in work.outputs() if path != work.pairs}
    states = {name: made[name]["made_from"] for name in ours if name in made}
    broken = [name for name, state in states.items() if state is None or not work.is_made(ours[name], state)]
    if broken:
        return f"unfinished or damaged: {', '.join(broken)}"
    made_from = features.made_from()
    if mapped.get("features") != {name: made_from[name] for name, count in current.counts.items() if count}:
        return "stale: images or features have changed since"
    if mapped.get("matches") != matches_fingerprint(current.matched):
        return "stale: matches have changed since"
    return "current"


def current_state(work: Workspace, features: FeatureStore, matches: MatchStore | None) -> Current:
    """What the commands after `extract` may use.

    Args:
        work: the folder; its list of pairs is read.
        features: its features.
        matches: its matches, if it has any.
    """
    made_from = features.made_from()
    listed = read_pairs(work.pairs) if work.pairs.is_file() else None
    pairs = None if listed is None else [pair for pair in listed if made_from.keys() >= set(pair)]
    matched = {} if matches is None else matches.current(made_from, pairs)
    return Current(
        counts=features.counts(),
        pairs=sorted(matched) if pairs is None else pairs,
        dropped=[] if listed is None else [pair for pair in listed if not made_from.keys() >= set(pair)],
        matched=matched,
    )
