import re

from runmanager import write_report
from tests.report.reading import by_id, figure, marks, parse, text_of, write_runs

GRID = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2, 0.3, 0.4) for seed in range(2)]
GOALS = ["max:test_accuracy", "max:test_loss"]  # of the same number: the more accuracy, the less loss


def page_of(tmp_path, goal, grid=GRID):
    path = write_runs(tmp_path / "grid", grid, lambda run: run["lr"])
    return parse(write_report(path, tmp_path / "report.html", goal=goal))


def test_of_several_goals_the_front_is_drawn_and_listed(tmp_path):
    page = page_of(tmp_path, GOALS)

    headline = "4 settings are trade-offs between test_accuracy and test_loss"
    assert text_of(by_id(page, "headline")) == headline
    assert text_of(by_id(page, "lead")).startswith("lr=0.4 leads")
    rows = [text_of(row) for row in by_id(page, "settings").iter("tr")]
    assert len(rows) == 1 + 4  # each has a better loss or a better accuracy
    assert rows[1].startswith("0.4")
    assert text_of(by_id(page, "front-words")).startswith("4 of 4 settings are on the Pareto front: ")
    (front,) = [path.attrib["d"] for path in figure(page, "front").iter("path") if path.get("class") == "front"]
    assert "test_accuracy is the first of 2 goals; 4 settings are on the Pareto front: " in text_of(page)
    heights = [float(number) for number in front[1:].replace("L", " ").split()[1::2]]
    assert heights == sorted(heights, reverse=True)  # to the best accuracy


def test_each_goal_has_its_curves_with_the_best_epoch_by_its_direction(tmp_path):
    page = page_of(tmp_path, [*GOALS, "max:loss"])

    titles = [text_of(next(figure(page, f"curves-{number}").iter("title"))) for number in range(3)]
    assert titles == ["test_accuracy by epoch", "test_loss by epoch", "loss by epoch"]
    for name in ("curves-1", "curves-2"):
        (peak,) = marks(page, name, "peak")
        (best,) = [mark for mark in marks(page, name, "run") if "best" in mark.attrib["class"]]
        heights = list(map(float, re.findall(r"[\d.]+", best.attrib["d"])[1::2]))
        assert float(peak.attrib["d"].split()[1].removesuffix("h0")) == min(heights)  # the largest loss


def test_the_runs_on_the_front_are_named_inside_the_figure(tmp_path):
    page = page_of(tmp_path, GOALS, [{"lr": lr} for lr in (0.1, 0.2, 0.3, 0.4)])

    texts = [text for text in figure(page, "front").iter("text") if text.get("class") == "end"]
    assert [text_of(text) for text in texts] == ["run 4", "run 3", "run 2", "run 1"]
    for text in texts:
        left = float(text.attrib["x"]) - (40 if text.get("text-anchor") == "end" else 0)
        assert 0 <= left <= 400 - 40


def test_one_that_is_best_in_all_goals_is_the_front(tmp_path):
    page = page_of(tmp_path, ["test_accuracy", "test_loss"])

    assert text_of(by_id(page, "front-words")).endswith("none is better than lr=0.4, with a ring, in any goal.")
    assert "no other setting is better in any of them." in text_of(by_id(page, "lead"))
    assert not [table for table in page.iter("table") if table.get("id") == "settings"][1:]


def test_the_effects_name_the_goal_that_they_are_of(tmp_path):
    words = "The effects below are on test_accuracy, the first goal."

    assert words in text_of(by_id(page_of(tmp_path / "two", GOALS), "why"))
    assert "the first goal" not in text_of(by_id(page_of(tmp_path / "one", GOALS[0]), "why"))


def test_three_goals_have_their_front_marked(tmp_path):
    page = page_of(tmp_path, [*GOALS, "min:run duration"])

    kinds = [path.get("class") for path in figure(page, "front").iter("path")]
    assert kinds.count("circle thin") == 4
    assert "front" not in kinds
    headings = [text_of(cell).strip(" ↕↑↓") for cell in by_id(page, "runs").iter("th")]
    assert headings.count("run duration") == 1
    assert headings.index("run duration") == headings.index("test_loss") + 1


def test_one_goal_has_no_front(tmp_path):
    page = page_of(tmp_path, "test_accuracy")

    assert "is the first of" not in text_of(page)
    assert not [svg for svg in page.iter("svg") if svg.get("aria-labelledby", "").startswith("front")]
