"""`linglue eval scalability`, `ablation` and `all` as users call them."""

import json

import pytest

from evaluation.tasks.test_homography import write_data_set


@pytest.mark.slow
def test_scalability_prints_tables_and_writes_a_report(run, tmp_path):
    options = ["--subjects", "mnn", "--sizes", 256, 512, "--repeats", 1, "--features", "sift", "--json"]
    outcome = run("eval", "scalability", *options, "-o", tmp_path)
    facts = json.loads(outcome.out)
    assert [row["keypoints"] for row in facts["costs"]] == [256, 512]
    assert "CPU time, ms" in outcome.err and (tmp_path / "curves.png").is_file()
    assert "<table>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scalability", "--subjects", "best"), "--subjects is 'best', expected linglue, pair"),
        (("ablation",), "no data to measure on, expected --homography or --localization"),
        (("ablation", "--methods", "mnn"), "unrecognized arguments: --methods mnn"),
        (("all", "--data", "none"), "none: no such folder, expected the one with oxford/ and epfl/"),
        (("all", "--data", ".", "--only", "best"), "section is 'best', expected homography"),
    ],
)
def test_wrong_arguments_are_one_clear_line(run, tmp_path, arguments, message):
    outcome = run("eval", *arguments, "-o", tmp_path / "work")
    assert outcome.code != 0 and message in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.slow
def test_all_writes_report_and_document_and_resumes(run, tmp_path, monkeypatch):
    monkeypatch.delenv("LINGLUE_PEERS", raising=False)
    planes = write_data_set(tmp_path / "data" / "oxford")
    (planes / "v_astronaut").rename(planes / "v_graf")
    (planes / "i_astronaut").rename(planes / "i_leuven")
    work, document = tmp_path / "work", tmp_path / "benchmarks.md"
    options = ["--quick", "--data", tmp_path / "data", "--only", "homography", "--workers", 1, "-o", work]
    outcome = run("eval", "all", *options, "--docs", document)
    assert outcome.code == 0, outcome.err
    results = work / "results-quick"
    assert {path.name for path in (results / "homography").iterdir()} >= {"summary.json", "pairs.csv", "curves.png"}
    text, page = document.read_text(encoding="utf-8"), (results / "report.html").read_text(encoding="utf-8")
    for part in ("sift:linglue", "loftr", "no weights", "Where we win and lose", "minutes of CPU time"):
        assert part in text and part in page
    before = (results / "homography.json").stat().st_mtime_ns
    assert run("eval", "all", *options, "--docs", document).code == 0
    assert (results / "homography.json").stat().st_mtime_ns == before  # nothing was measured again
