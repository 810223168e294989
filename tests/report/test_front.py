from runmanager import write_report
from tests.report.reading import by_id, figure, parse, text_of, write_runs

GRID = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2, 0.3, 0.4) for seed in range(2)]
GOALS = ["max:test_accuracy", "max:test_loss"]  # of the same number: the more accuracy, the less loss


def page_of(tmp_path, goal, grid=GRID):
    path = write_runs(tmp_path / "grid", grid, lambda run: run["lr"])
    return parse(write_report(path, tmp_path / "report.html", goal=goal))


def test_of_several_goals_the_front_is_drawn_and_listed(tmp_path):
    page = page_of(tmp_path, GOALS)

    headline = "4 settings are the best trade-offs between test_accuracy and test_loss"
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


def test_one_that_is_best_in_all_goals_is_the_front(tmp_path):
    page = page_of(tmp_path, ["test_accuracy", "test_loss"])

    assert text_of(by_id(page, "front-words")).endswith("none is better than run 7, with a ring, in any goal.")
    assert "no other setting is better in any of them." in text_of(by_id(page, "lead"))
    assert not [table for table in page.iter("table") if table.get("id") == "settings"][1:]


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
