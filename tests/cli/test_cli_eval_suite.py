"""`linglue eval scalability`, `ablation` and `all` as users call them."""

import json

import pytest


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
