"""One HTML file about a reconstruction of a rendered room."""

import re
from pathlib import Path

import numpy as np
import pytest

from chromium import Browser
from linglue.errors import LinGlueError
from linglue.sfm.report import ReportConfig, rank_pairs, read_pair, write_report
from linglue.sfm.summary import read_summary
from linglue.sfm.workspace import Workspace
from rendered import render

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def report(reconstruction, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "room ä.html"
    write_report(Workspace(reconstruction), path, ReportConfig(pairs=1, points=100))
    return path


def test_the_page_says_what_the_summary_says(report, reconstruction):
    text, summary = report.read_text(encoding="utf-8"), read_summary(Workspace(reconstruction).summary)
    assert f"<td class=number>{summary.model.points:,}</td>" in text
    assert "4 of 4" in text and "night.png" in text  # in the black image there is no keypoint
    assert all(f"<td>{stage}</td>" in text for stage in summary.seconds)
    assert [text.count(f"<h2>{title}</h2>") for title in ("Model", "Best pairs", "Worst pairs", "Time")] == [1, 1, 1, 1]
    assert text.count("data:image/jpeg;base64,") == 3  # the graph, the best pair, the worst one


def test_the_page_is_alone_in_the_world(report):
    text = report.read_text(encoding="utf-8")
    own = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "Plotly.newPlot" in text
    assert not re.search(r"""(src|href)=(?!["']?data:)""", own)
    assert not re.search(r"<script[^>]+src=", text)


def test_points_are_thinned(reconstruction, tmp_path):
    for most in (50, 100):
        write_report(Workspace(reconstruction), tmp_path / f"{most}.html", ReportConfig(pairs=0, points=most))
    counts = [(tmp_path / f"{most}.html").read_text(encoding="utf-8").count('"rgb(') for most in (50, 100)]
    assert counts[1] - counts[0] == 50  # the program of the plot has some, too


def test_matches_lie_on_the_same_points_of_the_room(reconstruction):
    view0, view1 = render(4)[:2]
    found = read_pair(Workspace(reconstruction).database, (view0.name, view1.name))
    assert 20 < found.verified.sum() <= len(found.verified) == len(found.points0) == len(found.points1)
    assert found.points0.min() >= -0.5 and (found.points0.max(axis=0) < view0.image.shape[1::-1]).all()


def test_best_and_worst_are_ranked_and_disjoint():
    matched = {("a", "b"): 100, ("a", "c"): 80, ("b", "c"): 50, ("c", "d"): 5}
    verified = {("a", "b"): 90, ("a", "c"): 20}
    assert rank_pairs(verified, matched, 1) == ([("a", "b")], [("b", "c")])
    assert rank_pairs(verified, matched, 9) == ([("a", "b"), ("a", "c")], [("b", "c")])  # 5 matches say nothing


def test_what_is_wrong_is_one_line(tmp_path):
    with pytest.raises(LinGlueError, match="holds no model, expected a folder of `linglue reconstruct`"):
        write_report(Workspace(tmp_path), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
    with pytest.raises(LinGlueError, match="pairs is -1, expected at least 0"):
        ReportConfig(pairs=-1)


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_draws_the_model(report, tmp_path):
    def plot_is_there(seen):
        return cameras(seen) > 50

    def cameras(seen):
        night = (np.abs(seen.astype(int) - [20, 22, 26]).max(axis=2) < 4).mean(axis=1)  # share of the plot in a row
        amber = np.abs(seen[night > 0.5].astype(int) - [255, 179, 0]).max(axis=2) < 60
        return int(amber.sum())

    with Browser(tmp_path) as browser:
        browser.open(report.as_uri())
        browser.wait_for_text("Best pairs")
        assert cameras(browser.wait_for_picture(plot_is_there)) > 50
