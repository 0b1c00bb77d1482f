"""linglue match-database."""

import json

from colmap_scene import all_pairs, write_scene
from linglue.io.colmap.database import open_database


def test_matches_are_replaced_and_kept_on_the_second_run(run, tmp_path):
    path = tmp_path / "database.db"
    write_scene(path, [(a, b, indices[:1]) for a, b, indices in all_pairs()[:2]])
    first = run("match-database", path)
    assert first.code == 0, first.err
    assert "2 pairs matched, 0 were there already" in first.out and "2 pairs verified" in first.out
    with open_database(path) as database:
        assert database.num_matched_image_pairs() == database.num_verified_image_pairs() == 2
        assert database.num_inlier_matches() > 50
    again = run("match-database", path, "--json")
    facts = json.loads(again.out)
    assert again.code == 0 and (facts["made"], facts["kept"], facts["verified"]) == (0, 2, 2)
    more = json.loads(run("match-database", path, "--pairs", "exhaustive", "--no-verify", "--json").out)
    assert (more["made"], more["kept"], more["verified"]) == (4, 2, None)


def test_what_is_no_database_is_one_line(run, tmp_path):
    text = tmp_path / "text.db"
    text.write_text("text" * 500)
    for path in (text, tmp_path / "none.db"):
        outcome = run("match-database", path)
        assert outcome.code == 1 and outcome.out == ""
        assert outcome.err.count("\n") == 1 and str(path) in outcome.err
    assert text.read_text() == "text" * 500
    write_scene(tmp_path / "bare.db", all_pairs(), with_descriptors=False)
    outcome = run("match-database", tmp_path / "bare.db")
    assert outcome.code == 1 and "has no descriptors" in outcome.err.splitlines()[-1]
