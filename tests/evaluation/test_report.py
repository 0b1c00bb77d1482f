"""The report and its pictures, from a small evaluation; who is ahead; a run that resumes."""

import re
from pathlib import Path

import cv2
import pytest

from chromium import Browser
from evaluation.tasks.test_homography import write_data_set
from linglue.errors import LinGlueError
from linglue.evaluation import figures, suite
from linglue.evaluation.methods import prepare
from linglue.evaluation.report import about, write_html, write_markdown
from linglue.evaluation.result import Result, Table, write_csv
from linglue.evaluation.sections import NoData
from linglue.evaluation.standings import standings
from linglue.evaluation.store import Predictions, predict
from linglue.evaluation.tasks import homography
from linglue.evaluation.tasks.homography import load_pairs
from linglue.matcher import Matcher
from linglue.sfm.extract import ExtractConfig

EXTRACT = ExtractConfig(features="sift", max_keypoints=300)
METHODS = ["sift:mnn", "sift:linglue"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    write_data_set(path / "data")
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return homography.evaluate(folder / "data", METHODS, folder / "work", EXTRACT, estimators=["poselib"])


def values(mma: float, correct: float) -> dict:
    return {"mma": {"3": mma}, "auc": {"poselib": {"5": 0.5}}, "correct": correct}


def test_the_page_has_all_inside(result: Result, tmp_path: Path) -> None:
    curves = figures.draw_curves(result, tmp_path / "curves.png")
    assert curves is not None and cv2.imread(str(curves)) is not None
    write_html(tmp_path / "report.html", "A & B", {"homography": result}, {"homography": [curves]}, ["2 cores"])
    page = (tmp_path / "report.html").read_text()
    assert "<title>A &amp; B</title>" in page and "2 cores" in page and "data:image/png;base64," in page
    assert (
        page.count("<table>") == len(result.tables) + 1
        and "Where we win and lose" in page
        and "<tr class=ours><td class=l>overall</td>" in page
    )
    assert not re.search(r'(src|href)="(?!data:)', page)  # nothing is loaded from elsewhere


@pytest.mark.browser
@pytest.mark.slow
def test_a_click_sorts_a_table(tmp_path: Path) -> None:
    table = Table(("method", "points"), (("b", "900"), ("a", "1,200"), ("d", "–"), ("c", "40")))
    result = Result("dense", {}, [{}], "rows", [table], "", {}, 1, 0)
    write_html(tmp_path / "report.html", "Sorted", {"dense": result}, {}, [])

    def order(browser: Browser) -> str:
        return "".join(line[0] for line in browser.text().splitlines() if line[:2] in ("a\t", "b\t", "c\t", "d\t"))

    with Browser(tmp_path) as browser:
        browser.open((tmp_path / "report.html").as_uri())
        browser.wait_for_text("1,200")
        assert order(browser) == "badc"
        x, y = browser.place("th:nth-child(2)")
        browser.click(x, y)
        assert order(browser) == "cbad"  # numbers as numbers, what is none comes last
        browser.click(x, y)
        assert order(browser) == "abcd"


def test_a_result_survives_a_file(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json").text() == result.text()


def test_rows_of_different_tasks_share_a_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [{"task": "a", "mma": 1}, {"task": "b", "inliers": 2}])
    assert (tmp_path / "rows.csv").read_text().split() == ["task,mma,inliers", "a,1,", "b,,2"]


def test_pictures_of_a_pair(folder: Path, result: Result, tmp_path: Path) -> None:
    truth = load_pairs(folder / "data")[0][0]
    _, found = predict(folder / "work", [truth.pair], prepare(METHODS, EXTRACT))
    predictions = {name: part[0] for name, part in found.items()}
    figures.draw_beside(tmp_path / "beside.png", truth, predictions)
    images = (truth.pair.image0, truth.pair.image1)
    with Predictions(folder / "work", truth.pair.group, EXTRACT).workspace.features() as store:
        features = [store.get(image.name) for image in images]
    matcher = Matcher.for_features("sift")
    figures.draw_neighborhoods(tmp_path / "neighborhoods.png", matcher, images, features)
    figures.draw_attention(tmp_path / "attention.png", matcher, images, features, 0)
    assert all(cv2.imread(str(path)) is not None for path in tmp_path.iterdir())
    weights = figures.attention_weights(matcher, features, 0)
    assert weights.shape == (len(features[1]),) and float(weights.sum()) == pytest.approx(1, abs=1e-4)
    with pytest.raises(LinGlueError, match="1 methods, expected two"):
        figures.draw_beside(tmp_path / "one.png", truth, dict(list(predictions.items())[:1]))


def test_whether_the_machine_had_other_work_is_measured() -> None:
    stamp = {"processor": "P", "cores": 2, "threads": 1, "system": "S", "versions": {"torch": "2"}, "date": "D"}
    quiet, busy = ({"pose": {**stamp, "seconds": 600.0, "cpu_seconds": cpu}} for cpu in (594.0, 300.0))
    assert (
        "9.9 minutes of CPU time (what an earlier run left is not counted): pose 9.9. Compare times only"
        in about(quiet, quick=False)[-1]
    )
    assert "other work (a process got 50% of a core): compare times only" in about(busy, quick=True)[-1]


def test_who_is_ahead() -> None:
    methods = {
        "sift:linglue": values(0.8, 90),
        "sift:ratio": values(0.9, 50),
        "sift:linglue-paper": values(1, 99),
        "aliked:lightglue": values(1, 99),
    }
    found = Result("homography", {"overall": methods}, [], "pairs", [], "", {}, 0, 0)
    rows = standings({"homography": found}).rows
    assert rows[0] == ("homography: MMA@3, %", "sift", "80.0", "ratio", "90.0", "behind")
    assert rows[1][-1] == "equal"
    assert not any("linglue-paper" in row for row in rows)  # ours with another head
    assert rows[2] == ("homography: correct matches", "sift", "90", "ratio", "50", "ahead")


def test_the_default_is_compared_with_all_others_too() -> None:
    methods = {
        "linpoint:linglue": values(0.8, 90),
        "linpoint:mnn": values(0.7, 95),
        "aliked:linglue": values(0.95, 99),
        "aliked:lightglue/4096": values(0.9, 80),
    }
    rows = standings({"homography": Result("homography", {"overall": methods}, [], "pairs", [], "", {}, 0, 0)}).rows
    assert rows[0] == ("homography: MMA@3, %", "linpoint", "80.0", "mnn", "70.0", "ahead")
    assert rows[1] == ("homography: MMA@3, %", "any", "80.0", "aliked:lightglue/4096", "90.0", "behind")
    assert rows[2] == ("homography: MMA@3, %", "aliked", "95.0", "lightglue/4096", "90.0", "ahead")


def test_scenes_without_a_group_of_all_have_rows_of_their_own() -> None:
    scenes = {
        scene: {"sift:linglue": {"points": points}, "sift:mnn": {"points": 5}, "colmap": {"points": 7}}
        for scene, points in (("fountain", 9), ("herzjesu", 6))
    }
    rows = standings({"reconstruction": Result("r", scenes, [], "cameras", [], "", {}, 0, 0)}).rows
    assert rows == (
        ("reconstruction fountain: points", "sift", "9", "colmap", "7", "ahead"),
        ("reconstruction herzjesu: points", "sift", "6", "colmap", "7", "behind"),
    )


def test_a_run_resumes_and_writes_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def section(name: str):
        def measure(_: suite.Suite) -> Result:
            calls.append(name)
            table = Table(("scene", "method", "value"), (("a", "mnn", "1"),), labels=2)
            rows = [{"method": "mnn", "value": 1}]
            return Result(name, {"a": {"mnn": {}}}, rows, "pairs", [table], "a note", {}, 1, 0, {"loftr": "why"})

        return measure

    monkeypatch.setattr(suite, "SECTIONS", {name: section(name) for name in ("reconstruction", "ablation")})
    whole = suite.Suite(tmp_path, tmp_path / "work")
    assert list(suite.run(whole, ["ablation"])[0]) == ["ablation"]
    results, failed = suite.run(whole)
    assert not failed
    assert calls == ["ablation", "reconstruction"] and list(results) == ["reconstruction", "ablation"]
    files = suite.write_suite(whole, results, tmp_path / "benchmarks.md")
    assert all(path.is_file() for path in files)
    text = (tmp_path / "benchmarks.md").read_text()
    assert "no weights" in text and "a note" in text and "SGMNet" in text and "published, not measured here" in text
    assert "torch" in text and "left is not counted): reconstruction 0.0, ablation 0.0" in text
    page = (whole.results / "report.html").read_text()
    assert "published, not measured here" in page and "South-Building" in page and "no weights" in page
    with pytest.raises(LinGlueError, match="section is 'best', expected reconstruction, ablation"):
        suite.run(whole, ["best"])
    with pytest.raises(LinGlueError, match="no such folder, expected the one with oxford/"):
        suite.run(suite.Suite(tmp_path / "none", tmp_path))


def test_a_section_that_cannot_run_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_data(whole: suite.Suite) -> Result:
        return homography.evaluate(whole.planes("oxford"), ["mnn"], whole.work)

    def broken(_: suite.Suite) -> Result:
        raise LinGlueError("broken")

    def good(_: suite.Suite) -> Result:
        return Result("scores", {}, [{"value": 1}], "rows", [], "", {}, 1, 0)

    monkeypatch.setattr(suite, "SECTIONS", {"homography": no_data, "pose": broken, "scores": good})
    results, failed = suite.run(suite.Suite(tmp_path, tmp_path / "work"))
    assert list(results) == ["scores"]
    assert failed["pose"] == "broken" and failed["homography"].startswith("no data (")


def test_a_quick_run_takes_the_sequences_that_are_there(tmp_path: Path) -> None:
    for data in ("first", "second"):
        write_data_set(tmp_path / data / "oxford")
        (tmp_path / data / "oxford" / "v_astronaut").rename(tmp_path / data / "oxford" / "v_graf")
    first, second = (suite.Suite(tmp_path / data, tmp_path / "work", quick=True) for data in ("first", "second"))
    found = first.planes("oxford")
    assert [path.name for path in found.iterdir()] == ["v_graf"] and found.name == "oxford"
    assert first.planes("oxford") == found  # again, as other sections and later runs do
    assert (second.planes("oxford") / "v_graf").resolve() == tmp_path / "second" / "oxford" / "v_graf"
    (tmp_path / "first" / "evd").mkdir()
    with pytest.raises(NoData, match="holds none of v_adam"):
        first.planes("evd")


def test_several_sections_at_a_time(tmp_path: Path) -> None:
    whole = suite.Suite(tmp_path, tmp_path / "work", workers=2)
    results, failed = suite.run(whole)  # in two processes, which find nothing
    assert not results and failed.keys() == suite.SECTIONS.keys()
    assert all(why.startswith("no data (") for why in failed.values())
    assert sorted(name for lane in suite.LANES for name in lane) == sorted(suite.SECTIONS)


def test_what_other_benchmarks_measured_is_in_the_document(tmp_path: Path) -> None:
    table = Table(("scene", "points"), (("room", "465,167"),))
    result = Result("dense", {}, [{"points": 465167}], "scenes", [table], "a note on rooms", {}, 1, 0)
    result.save(tmp_path / suite.MEASURED / "dense.json")
    whole = suite.Suite(tmp_path, tmp_path / "work")
    whole.results.mkdir(parents=True)
    suite.write_suite(whole, {}, tmp_path / "benchmarks.md")
    text = (tmp_path / "benchmarks.md").read_text()
    assert "## Dense points" in text and "465,167" in text and "a note on rooms" in text
    assert "465,167" in (tmp_path / "work" / "results" / "report.html").read_text()


def test_new_weights_make_a_section_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def section(_: suite.Suite) -> Result:
        calls.append(1)
        return Result("scores", {}, [{"value": 1}], "rows", [], "", {}, 1, 0)

    monkeypatch.setattr(suite, "SECTIONS", {"scores": section})
    whole = suite.Suite(tmp_path, tmp_path / "work", networks=tmp_path)
    suite.run(whole)
    suite.run(whole)
    assert len(calls) == 1
    (tmp_path / "new.safetensors").write_bytes(b"weights")
    suite.run(whole)
    assert len(calls) == 2


def test_markdown_of_a_real_result(result: Result, tmp_path: Path) -> None:
    write_markdown(tmp_path / "b.md", {"homography": result}, {}, quick=True)
    text = (tmp_path / "b.md").read_text()
    assert "| overall | sift:linglue |" in " ".join(text.split())
    assert "ahead" in text or "behind" in text
