"""Growth with the number of keypoints: exponents, tables, what was given up, and resuming."""

from pathlib import Path

import pytest

from linglue.evaluation.subjects import Subject
from linglue.evaluation.tasks import scalability
from linglue.evaluation.timing import Cost, Limits


def fake(calls: list[tuple[str, int]]):
    def measure(subject: Subject, size: int, threads: int, repeats: int, limits: Limits):
        calls.append((subject.name, size))
        if subject.name == "superglue":
            return [Cost("superglue", "matching", size, 1.0, 1.0, 1.0, 7, untrained=True)]
        if subject.name == "adalam" and size > 1024:
            return "too slow"
        return [Cost(subject.shown, "matching", size, 1.0, (size / 1024) ** 2 / 1000, size / 1024, 7)]

    return measure


def test_tables_exponents_and_what_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(scalability, "measure_apart", fake(calls))
    subjects = [Subject("mnn"), Subject("adalam"), Subject("superglue")]
    result = scalability.evaluate(tmp_path, subjects, (1024, 2048, 4096, 8192))
    exponents = result.summary["exponents"]["mnn"]["matching"]
    assert exponents["cpu_seconds"] == pytest.approx(2) and exponents["megabytes"] == pytest.approx(1)
    assert result.settings["given_up"] == {"adalam": "too slow"}
    assert calls.count(("adalam", 2048)) == 1 and ("adalam", 4096) not in calls  # larger ones are not tried
    time, memory = result.tables
    assert time.rows[0] == ("mnn", "matching", "1", "4", "16", "64", "2.00")
    assert time.rows[1] == ("adalam", "matching", "1", "too slow", "–", "–", "–")
    assert time.rows[2] == ("superglue (random weights)", "matching", *["1000"] * 4, "0.00")
    assert memory.rows[0][-1] == "1.00"

    made = len(calls)
    scalability.evaluate(tmp_path, subjects[:1], (1024, 2048))
    assert len(calls) == made  # kept from the first run


def test_one_matcher_with_two_kinds_of_features_is_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalability, "measure_apart", fake([]))
    subjects = [Subject("lightglue", "aliked"), Subject("lightglue", "xfeat", "lighterglue")]
    result = scalability.evaluate(tmp_path, subjects, (1024, 2048))
    assert [row[0] for row in result.tables[0].rows] == ["lightglue", "lighterglue"]
    shown = [subject.shown for subject in scalability.SUBJECTS]
    assert len(set(shown)) == len(shown)
