import base64
import hashlib
import itertools
import json
import math
import re

import pytest

from runmanager import InvalidArgumentError, RunManager, write_report
from runmanager.errors import GridError, StorageError
from runmanager.goal import Goal, parse_goal
from runmanager.outcome import Outcome, Status
from runmanager.report.render import watch_runs, write_page
from runmanager.report.timeline import Busy, timeline
from runmanager.storage.design import Design
from runmanager.storage.folders import Experiment
from tests.damaging import flip, journals
from tests.report.reading import by_id, figure, marks, parse, text_of, write_runs

GRID = [
    {"lr": lr, "optimizer": optimizer, "seed": seed, "device": device, "batch_size": 100}
    for lr, optimizer, seed, device in itertools.product(
        [0.1, 0.01], ["adam", "sgd"], range(3), ["cpu", "cuda"]
    )
]
OUTCOMES = {
    2: Outcome(Status.FAILED, "ValueError: no", 0),
    3: Outcome(Status.DIVERGED, "loss became nan in epoch 2", 2),
    4: Outcome(Status.PENDING),
}


def score(run):
    return 0.9 - 0.2 * (run["lr"] == 0.1) - 0.05 * (run["optimizer"] == "sgd") + 0.001 * run["seed"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return write_runs(folder / "grid", GRID, score, outcomes=OUTCOMES)


@pytest.fixture(scope="module")
def page(path):
    return parse(write_report(path, path.parent / "report.html"))


def report(path):
    return parse(write_report(path, path.parent / "report.html"))


def test_the_first_lines_say_which_run_is_best_by_how_much_and_why(page):
    assert text_of(by_id(page, "headline")) == (
        "Undecided between lr=0.01 optimizer=adam device=cpu and the other 7 settings after 1 to 3 seeds"
    )
    assert text_of(by_id(page, "lead")) == (
        "lr=0.01 optimizer=adam device=cpu and lr=0.01 optimizer=adam device=cuda have the highest "
        "test_accuracy so far: 0.901. "
        "lr=0.01 optimizer=adam device=cpu and lr=0.01 optimizer=adam device=cuda have the same mean; "
        "a verdict needs at least 8 seeds; lr=0.1 optimizer=adam device=cuda"
        " lost 1 of 3 seeds (diverged); lr=0.1 optimizer=adam device=cpu lost 1 of 2 seeds (failed)."
    )
    assert text_of(by_id(page, "matters")) == (
        "Changing lr alone changes test_accuracy by 0.2 on average, optimizer by 0.05, device by 0.00025; "
        "repeats of a setting differ by 0.0012."
    )


def test_axes_that_repeat_by_their_names_are_averaged_and_that_is_said(page):
    words = text_of(by_id(page, "assumption"))

    assert words == "By its name, seed only repeats a setting; repeats=() says that no axis does."


def test_what_failed_is_said_at_the_top_and_leads_to_its_cause(page):
    links = {text_of(link): link.get("href", "") for link in by_id(page, "alerts").iter("a")}

    assert list(links) == [
        "failed run 3 (lr=0.1 optimizer=adam seed=1 device=cpu)",
        "diverged run 4 (lr=0.1 optimizer=adam seed=1 device=cuda)",
    ]
    for text, link in links.items():
        assert text_of(by_id(page, link[1:])).startswith(text)


def test_what_says_nothing_is_left_out_with_its_link(tmp_path):
    page = report(write_runs(tmp_path / "grid", [{"lr": 0.1}], lambda _: 0.5, num_epochs=1))

    assert [text_of(link) for link in next(page.iter("nav")).iter("a")] == ["Runs", "How it was run"]
    assert [section.get("id") for section in page.iter("section")] == ["best", "how"]


def test_a_page_of_one_run_does_not_speak_of_several(tmp_path):
    page = report(write_runs(tmp_path / "grid", [{"lr": 0.1}], lambda _: 0.5, num_epochs=1))

    assert text_of(by_id(page, "best-title")) == "The run"
    assert "ranked" not in text_of(by_id(page, "best"))
    assert [text_of(card) for card in next(page.iter("dl"))][:2] == ["run1", "epoch1"]
    (search,) = (label for label in page.iter("label") if text_of(label).startswith("Show runs with"))
    assert "hidden" in search.attrib


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNAVAILABLE])
def test_a_page_without_an_epoch_begins_with_what_went_wrong(tmp_path, status):
    outcomes = dict.fromkeys(range(2), Outcome(status, "no", 0))
    page = report(write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda _: 0.5, outcomes=outcomes))

    sections = [section.get("id") for section in page.iter("section")]
    links = [link.get("href") for link in next(page.iter("nav")).iter("a")]
    assert sections[:2] == ["wrong", "best"]
    assert links == [f"#{section}" for section in sections]
    assert "no result" not in text_of(by_id(page, "wrong"))  # the cards and the only cause have the number
    assert text_of(by_id(page, "best-title")) == "Runs"
    assert "run time" not in text_of(page)
    assert "Durations are measured" not in text_of(page)


def test_the_epochs_of_pruned_runs_are_beside_their_scores(tmp_path):
    outcomes = {0: Outcome(Status.PRUNED, "", 1)}
    page = report(write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda _: 0.5, outcomes=outcomes))

    headings = [text_of(cell).strip(" ↕↑↓") for cell in by_id(page, "runs").iter("th")]
    hidden = text_of(next(page.iter("style"))).partition("#runs:not(.all) :is(th,td)")[2].partition("{")[0]
    assert f":nth-child({headings.index('epochs') + 1})" not in hidden


def test_the_note_of_the_experiment_is_below_the_headline(tmp_path):
    path = write_runs(tmp_path / "grid", [{"lr": 0.1}], lambda _: 0.5)
    Experiment(path).decide(Design(note="does <lr> matter?"))

    assert text_of(by_id(report(path), "note")) == "does <lr> matter?"


def test_a_note_is_markdown_on_the_page_and_its_first_line_in_the_index(tmp_path):
    note = "does *lr* matter?\n\n# Known\n\n- **Adam**: [paper](https://example.org/adam)\n- `lr<0.1`"
    for name in ("one", "two"):
        Experiment(write_runs(tmp_path / name, [{"lr": 0.1}], lambda _: 0.5)).decide(Design(note=note))

    index = parse(write_report(tmp_path))

    content = [(element.tag, text_of(element)) for element in by_id(report(tmp_path / "one"), "note").iter()][
        1:
    ]
    assert content == [
        ("p", "does lr matter?"), ("em", "lr"), ("h2", "Known"), ("ul", "Adam: paper lr<0.1"),
        ("li", "Adam: paper"), ("strong", "Adam"), ("a", "paper"), ("li", "lr<0.1"), ("code", "lr<0.1"),
    ]  # fmt: skip
    assert [text_of(p) for p in index.iter("p") if p.get("class") == "note"] == ["does *lr* matter?"] * 2


def test_a_hostile_note_executes_nothing_and_loads_nothing(tmp_path):
    path = write_runs(tmp_path / "grid", [{"lr": 0.1}], lambda _: 0.5)
    links = [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "&#106;avascript:alert(1)",
        "data:text/html,a",
        "file:///a",
    ]
    lines = [f"[x]({link}) ![y]({link}) <{link}> [z]\n\n[z]: {link}" for link in (*links, "../a", "//a.org/")]
    html = "<script>alert(1)</script> <img src=x onerror=alert(1)> <a href='javascript:alert(1)'>a</a> \x1b[31m"
    web = '[w](https://a.org/"onclick="alert(1)) ![w](https://a.org/w.png "&#8238;title") &#8238;abc'
    Experiment(path).decide(Design(note="\n\n".join([html, *lines, f"<div onclick=a>\n{html}", web])))

    note = by_id(report(path), "note")

    assert {element.tag for element in note.iter()} == {"div", "p", "a"}
    assert [element.attrib for element in note.iter() if element.attrib and element is not note] == [
        {"href": "https://a.org/%22onclick=%22alert(1)"},
        {"href": "https://a.org/w.png"},
    ]
    assert html.replace("\x1b", "\\x1b") in text_of(note)
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text_of(note)


def test_repeated_settings_are_ranked_by_their_mean_and_failed_repeats_are_named(tmp_path):
    outcomes = {4: Outcome(Status.DIVERGED, "loss became nan", 1)}
    grid = [{"lr": lr, "seed": seed} for lr in (0.1, 0.01, 0.001) for seed in range(2)]
    lucky = {0.1: [0.5, 0.9], 0.01: [0.75, 0.79], 0.001: [0.1, 0.1]}
    path = write_runs(tmp_path / "grid", grid, lambda run: lucky[run["lr"]][run["seed"]], outcomes=outcomes)
    Experiment(path).decide(Design(repeats=("seed",)))

    page = report(path)

    # the luckiest run, with 0.9, is of the second setting; the third has one seed
    assert (
        text_of(by_id(page, "headline"))
        == "lr=0.01 leads the other 2 settings, but 1 to 2 seeds do not decide it"
    )
    assert text_of(by_id(page, "lead")) == (
        "lr=0.01 has the highest test_accuracy: 0.77, the mean of 2 seeds, 95 % interval 0.516 to 1.000. The "
        "closest, lr=0.1, is 0.07 behind; a verdict needs at least 7 seeds; "
        "lr=0.001 lost 1 of 2 seeds (diverged)."
    )
    (caption,) = by_id(page, "settings").iter("caption")
    assert text_of(caption).startswith("The settings by their mean; all 3 settings are ranked")
    lines = [[text_of(cell) for cell in row.iter("td")] for row in by_id(page, "settings").iter("tr")]
    assert lines[1:] == [
        ["0.01", "0.77", "", "0.516 to 1.000", "2"],
        ["0.1", "0.70", "0.07, may be chance", "", "2"],
        ["0.001", "0.10", "one seed: not ranked", "", "1 of 2, 1 diverged"],
    ]
    rows = [row for row in by_id(page, "runs").iter("tr") if row.get("data-r")]
    assert [text_of(row[0]) for row in rows] == ["run 4", "run 3", "run 2", "run 1", "run 6", "run 5"]
    assert (
        "All else equal, 0.01 has the highest test_accuracy: 0.77, 0.07 above 0.1 (one comparison of 3 means "
        "over seed). That may be chance." in text_of(by_id(page, "why"))
    )
    assert "seed" not in [text_of(figure).rpartition(" ")[2] for figure in page.iter("title")]


def test_a_page_calls_no_setting_the_best_before_the_verdict_does(tmp_path):
    grid = [{"name": name, "width": width, "seed": s} for name in "AB" for width in (8, 16) for s in range(3)]
    noise = {"A": [0.03, 0.01, 0.02], "B": [0.01, 0.04, 0.03]}
    path = write_runs(
        tmp_path / "grid", grid, lambda run: 0.7 + noise[run["name"]][run["seed"]] + run["width"] / 1e4
    )
    Experiment(path).decide(Design(Goal("test_accuracy", 1), repeats=("seed",)))

    words = text_of(next(report(path).iter("body"))).replace("Which setting is best?", "")

    assert "3 seeds do not decide it" in words
    assert not re.findall(r"\w+ (?:is|are) best|best (?:of|setting|\d+ settings)|behind the best", words)
    assert "A has the highest" not in words
    assert (
        "All else equal, B has the highest test_accuracy on average: 0.7279, 0.0067 above A (2 comparisons of "
        "means over seed, highest in 2). That may be chance."
    ) in words


def test_a_report_follows_the_goal_of_the_experiment(tmp_path):
    path = write_runs(tmp_path / "grid", GRID[:3], score)
    Experiment(path).decide(Design(Goal("test_loss", 1)))

    page = report(path)

    assert text_of(by_id(page, "lead")).startswith("device=cuda has the highest test_loss: 1.3, of one seed.")
    assert text_of(by_id(page, "basis")) == (
        "The last test_loss of each run counts, higher is better. In at most 5 of 100 experiments "
        "is the verdict wrong."
    )


def test_a_given_goal_decides_between_experiments_with_different_goals(tmp_path):
    for name, goal in (("one", Goal("test_loss", 1)), ("other", Goal("test_accuracy", 1))):
        Experiment(write_runs(tmp_path / name, GRID[:2], score)).decide(Design(goal))

    with pytest.raises(ValueError, match="these experiments have different goals"):
        write_report([tmp_path / "one", tmp_path / "other"], tmp_path / "page.html")
    path = write_report([tmp_path / "one", tmp_path / "other"], tmp_path / "page.html", "min:test_loss")

    assert "test_loss" in text_of(by_id(parse(path), "headline"))


def test_the_table_has_every_run_the_best_first_and_only_what_varied(page):
    table = by_id(page, "runs")
    headings = [text_of(heading) for heading in table.iter("th") if heading.get("scope") == "col"]
    rows = [row for row in table.iter("tr") if row.get("data-r")]

    assert headings == [
        "run", "test_accuracy", "lr", "optimizer", "device", "seed", "test_loss", "accuracy", "loss", "epochs",
        "epoch duration", "run duration", "status",
    ]  # fmt: skip
    assert len(rows) == len(GRID)
    assert {len(row) for row in rows} == {len(headings)}
    assert [text_of(row[0]) for row in rows[:3]] == ["run 17", "run 15", "run 13"]  # the leading setting's
    assert not [heading for heading in table.iter("th") if heading.get("aria-sort")]
    assert [text_of(row[-1]) for row in rows[21:]] == ["failed", "diverged", "pending"]


def test_every_figure_has_a_mark_for_each_run(page):
    num_completed = len(GRID) - len(OUTCOMES)

    for name in ("curves-0", "curves-1"):
        assert len(marks(page, name, "run")) == num_completed + 1  # the diverged one has epochs too
        assert len([mark for mark in marks(page, name, "best") if "run" in mark.get("class", "").split()]) == 1
        assert len(marks(page, name, "peak")) == 1
    for number in range(3):
        axis = text_of(figure(page, f"effect-{number}").find("title")).rpartition(" ")[2]
        dots = marks(page, f"effect-{number}", "dots")
        assert len(marks(page, f"effect-{number}", "mean")) == len({run[axis] for run in GRID})
        assert sum(dot.get("d", "").count("M") for dot in dots) == num_completed
        assert sum(len(dot.get("data-runs", "").split()) for dot in dots) == num_completed


def test_every_figure_says_in_words_what_it_shows(page):
    figures = list(page.iter("svg"))

    assert len(figures) == 6
    for svg in figures:
        title, words = (by_id(page, name) for name in svg.get("aria-labelledby", "").split())
        assert svg.get("role") == "img"
        assert text_of(title)
        assert text_of(words).endswith(".")


def test_a_page_of_runs_that_are_left_says_how_many_and_when_it_was_written(page, path, tmp_path):
    which = "1 of 24 runs is left to execute; start the same command again to execute it"
    assert re.fullmatch(rf"As of [\d-]+ [\d:]+ UTC, {which}\.", text_of(by_id(page, "left")))

    over = parse(write_report(write_runs(tmp_path / "grid", GRID, score), tmp_path / "report.html"))
    assert not [element for element in over.iter() if element.get("id") in ("left", "age")]


def test_a_page_after_ctrl_c_says_where_runs_resume_and_how(tmp_path):
    outcomes = {1: Outcome(Status.INTERRUPTED, "", 2), 2: Outcome(Status.PENDING)}
    path = write_runs(tmp_path / "grid", [{"lr": lr} for lr in (1, 2, 3)], lambda _: 0.5, outcomes=outcomes)

    assert text_of(by_id(report(path), "left")).endswith(
        " UTC, 2 of 3 runs are left to execute; start the same command again to execute them."
    )


@pytest.mark.parametrize(
    ("seconds", "step"), [(2.0, ""), (None, "; start the same command again to execute them")]
)
def test_a_page_after_ctrl_c_between_two_runs_says_how_to_go_on(tmp_path, seconds, step):
    outcomes = {1: Outcome(Status.PENDING), 2: Outcome(Status.PENDING)}
    path = write_runs(tmp_path / "grid", [{"lr": lr} for lr in (1, 2, 3)], lambda _: 0.5, outcomes=outcomes)

    page = parse(write_page(path, tmp_path / "report.html", seconds=seconds))

    assert text_of(by_id(page, "left")).endswith(f" UTC, 2 of 3 runs are left to execute{step}.")


def test_what_went_wrong_is_told_with_its_cause_and_the_next_step(page):
    words = text_of(by_id(page, "wrong"))

    assert "2 of 24 runs have no result: 1 failed, 1 diverged." in words
    assert "failed run 3 (lr=0.1 optimizer=adam seed=1 device=cpu) ValueError: no" in words
    assert "retry_failed=True" in words
    assert "Traceback ValueError: no" in words
    assert "loss became nan in epoch 2Next: not repeated: the same numbers would diverge again" in words


def test_how_it_was_run_has_versions_commit_command_and_what_was_the_same(page):
    words = text_of(by_id(page, "how"))

    for fact in ("torch2.15.0", "commitabc", "commandgrid.py", "the same in all runsbatch_size 100"):
        assert fact in words


def test_ids_are_unique_and_links_stay_on_the_page(page):
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    links = [link.get("href", "") for link in page.iter("a")]

    assert len(ids) == len(set(ids))
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert not [e for e in page.iter() if e.get("src") or e.tag == "link"]


def test_the_policy_allows_no_network_and_no_script_but_its_own(page):
    (policy,) = [meta.get("content", "") for meta in page.iter("meta") if meta.get("http-equiv")]
    (script,) = [element for element in page.iter("script") if not element.get("type")]
    digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()

    assert (
        policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_text_of_runs_is_never_markup(tmp_path):
    evil = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\0"
    grid = [{"name": evil}, {"name": "good"}, {"name": "bad"}]
    outcomes = {2: Outcome(Status.FAILED, evil, 0)}
    write_runs(tmp_path / "grid", grid, lambda run: len(run["name"]) / 100, outcomes=outcomes)

    page = report(tmp_path / "grid")

    assert [element.get("type") for element in page.iter("script")] == ["application/json", None]
    assert list(page.iter("img")) == []
    shown = text_of(page)
    assert shown.count("</td><script>alert(1)</script><img src=x onerror=alert(1)>") > 3
    assert "\x1b" not in shown
    assert "\0" not in shown


@pytest.mark.parametrize(
    ("grid", "outcomes", "num_epochs", "words"),
    [
        ([{"lr": 0.1}], {}, 2, "Run 1 has test_accuracy 0.5"),
        ([{}], {}, 1, "Run 1 has test_accuracy 0.5"),
        ([{"lr": 0.1}], {0: Outcome(Status.PENDING)}, 1, "No run has completed"),
        ([{"lr": 0.1}, {"lr": 0.2}], {0: Outcome(Status.KILLED, "killed", 1)}, 1, "Run 2 (lr=0.2) has"),
        ([{"lr": 0.1}, {"lr": [1, None]}, {"lr": float("nan")}, {"device": "cpu"}], {}, 1, "Run 1 (lr=0.1"),
    ],
)  # fmt: skip
def test_few_or_odd_runs_make_a_page_too(tmp_path, grid, outcomes, num_epochs, words):
    write_runs(tmp_path / "grid", grid, lambda _: 0.5, num_epochs=num_epochs, outcomes=outcomes)

    page = report(tmp_path / "grid")

    assert text_of(next(page.iter("h1"))).startswith(words)
    assert sum(bool(row.get("data-r")) for row in page.iter("tr")) == len(grid)


def test_values_that_look_alike_have_all_their_digits_and_the_others_four(tmp_path):
    grid = [{"rate": rate} for rate in (0.30138168803582194, 0.1234561, 0.12345609999)]
    write_runs(tmp_path / "grid", grid, lambda run: run["rate"])

    page = report(tmp_path / "grid")

    assert text_of(next(page.iter("h1"))).startswith("Run 1 (rate=0.3014) is best")
    cells = {text_of(cell) for cell in next(page.iter("tbody")).iter("td")}
    assert cells >= {"0.3014", "0.1234561", "0.12345609999"}


def test_a_page_without_a_completed_run_says_so(tmp_path):
    path = write_runs(tmp_path / "grid", [{"lr": 0.1}], lambda _: 0.5, outcomes={0: Outcome(Status.PENDING)})
    Experiment(path).decide(Design(parse_goal("max:accuracy")))

    page = report(path)

    assert text_of(next(page.iter("h1"))) == "No run has completed"
    headings = [text_of(cell).strip(" ↕↑↓") for cell in by_id(page, "runs").iter("th")]
    assert "accuracy" not in headings  # it would be empty


def test_a_missing_device_is_amber_as_in_a_terminal(tmp_path):
    outcomes = {1: Outcome(Status.UNAVAILABLE, "no cuda"), 2: Outcome(Status.FAILED, "no")}
    write_runs(tmp_path / "grid", [{"lr": lr} for lr in (1, 2, 3)], lambda _: 0.5, outcomes=outcomes)

    page = report(tmp_path / "grid")

    kinds = [entry.attrib["class"] for entry in by_id(page, "alerts").iter("li")]
    assert sorted(kinds) == ["failed", "unavailable"]
    assert ".unavailable .status { color: var(--warn); }" in text_of(next(page.iter("style")))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([0.5, 0.5, 0.5], "Run 1 (number=0) and 2 others are best: loss 0.5"),
        ([0.5, 0.5, 0.7], "Run 1 (number=0) and run 2 (number=1) are best: loss 0.5"),
    ],
)
def test_runs_that_are_equally_good_are_counted(tmp_path, losses, said):
    manager = RunManager("grid", tmp_path, tensorboard=False, display=False)
    for number, loss in enumerate(losses):
        with manager.run({"number": number}):
            for _ in manager.epochs(1):
                manager.track_loss(loss, 10)

    assert text_of(by_id(report(tmp_path / "grid"), "headline")) == said


def test_axes_that_always_vary_together_are_not_told_apart(tmp_path):
    grid = [{"lr": n, "width": n} for n in (1, 2, 3, 4, 5)]
    write_runs(tmp_path / "grid", grid, lambda run: run["lr"] / 10)

    words = text_of(by_id(report(tmp_path / "grid"), "why"))

    assert "%" not in words
    assert "No two settings differ in one hyperparameter alone" in words
    correlation = "test_accuracy rises with it (rank correlation 1.00 over 5 settings)."
    assert f"No two settings differ in lr alone. {correlation}" in words


def test_an_effect_is_that_of_otherwise_equal_settings(tmp_path):
    # 512 ran with the good lr alone: its marginal mean is the best one, though 128 is better wherever both ran
    grid = [{"lr": lr, "width": width} for lr in (0.1, 0.01) for width in (32, 128)] + [
        {"lr": 0.1, "width": 512}
    ]
    scores = {32: 0.3, 128: 0.4, 512: 0.38}
    write_runs(tmp_path / "grid", grid, lambda run: scores[run["width"]] + 0.4 * (run["lr"] == 0.1))

    words = text_of(by_id(report(tmp_path / "grid"), "why"))

    highest = "has the highest test_accuracy"
    assert f"All else equal, 128 {highest}: 0.80, 0.02 above 512 (one comparison of 3 values)." in words
    assert f"512 {highest}" not in words


def test_repeats_are_not_assumed_where_an_experiment_has_none(tmp_path):
    write_runs(tmp_path / "runs" / "a", [{"lr": 0.1, "seed": seed} for seed in (1, 2)], lambda _: 0.5)
    write_runs(tmp_path / "runs" / "b", [{"lr": 0.2}], lambda _: 0.8)

    page = parse(write_report([tmp_path / "runs" / "a", tmp_path / "runs" / "b"], tmp_path / "report.html"))

    assert text_of(by_id(page, "headline")) == "Run 1 (experiment=b lr=0.2) is best: test_accuracy 0.8"


def test_curves_need_more_than_one_epoch(tmp_path):
    write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"], num_epochs=1)

    page = report(tmp_path / "grid")

    assert "learning" not in [section.get("id") for section in page.iter("section")]
    with pytest.raises(ValueError, match="not enough values"):
        figure(page, "curves-0")


@pytest.mark.parametrize(("value", "names"), [(math.inf, []), (2e16, ["curves-0", "curves-1"])])
def test_numbers_that_are_infinite_or_huge_and_equal_make_a_page_too(tmp_path, value, names):
    write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda _: value)

    page = report(tmp_path / "grid")

    drawn = [svg.get("aria-labelledby", "").partition("-title")[0] for svg in page.iter("svg")]
    assert [name for name in drawn if name.startswith("curves")] == names
    assert sum(bool(row.get("data-r")) for row in page.iter("tr")) == 2


@pytest.mark.parametrize("values", [(0.12345678, 0.12345679), (None, "none")])
def test_values_that_read_the_same_are_compared(tmp_path, values):
    first, second = ({"x": value} for value in values)
    write_runs(tmp_path / "grid", [first, second], lambda run: 0.5 if run == first else 0.75)

    page = report(tmp_path / "grid")

    words = f"All else equal, {values[1]!r} has the highest test_accuracy: 0.75, 0.25 above {values[0]!r} (one"
    assert words in text_of(page)


def test_only_completed_runs_count_as_better_at_an_earlier_epoch(tmp_path):
    outcomes = {3: Outcome(Status.INTERRUPTED, "", 2), 4: Outcome(Status.PENDING)}
    # a negative score falls from the first epoch on
    write_runs(tmp_path / "grid", [{"lr": lr} for lr in range(1, 6)], lambda run: -run["lr"], outcomes=outcomes)

    words = text_of(by_id(report(tmp_path / "grid"), "learning"))
    assert "3 of 3 completed runs were over 1 % better at an earlier epoch" in words


def test_the_weights_of_one_metric_are_advised_to_be_kept(tmp_path):
    write_runs(tmp_path / "grid", [{"lr": lr} for lr in range(1, 6)], lambda run: -run["lr"])

    words = text_of(by_id(report(tmp_path / "grid"), "learning"))

    assert words.count("over 1 % better at an earlier epoch") > words.count("keep=") > 0
    assert words.count("keep=") == words.count('keep="best:test_accuracy"')


def test_a_run_of_one_epoch_is_not_said_to_get_better(tmp_path):
    outcomes = {0: Outcome(Status.COMPLETED, "", 1)}
    write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.9}], lambda run: 1 - run["lr"], outcomes=outcomes)

    page = report(tmp_path / "grid")

    learning = text_of(by_id(page, "learning"))
    assert text_of(next(page.iter("h1"))).startswith("Run 1")
    assert "improving" not in learning
    assert "Its last accuracy on the training data is" in learning


def test_several_experiments_are_one_page_that_tells_them_apart(tmp_path):
    for name, best in (("first", 0.7), ("second", 0.8)):
        write_runs(
            tmp_path / "runs" / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run, best=best: best - run["lr"]
        )

    page = parse(write_report([tmp_path / "runs" / n for n in ("first", "second")], tmp_path / "report.html"))

    assert text_of(next(page.iter("h1"))) == "Run 1 (experiment=second lr=0.1) is best: test_accuracy 0.7"
    assert "second run 1" in text_of(by_id(page, "runs"))


def test_a_root_has_an_index_of_the_pages_of_its_experiments(tmp_path):
    root = tmp_path / "runs"
    pending = {1: Outcome(Status.PENDING)}
    write_runs(root / "first", [{"lr": 0.1}, {"lr": 0.2}], lambda run: 0.7 - run["lr"], outcomes=pending)
    second = Experiment(write_runs(root / "second", [{"lr": 0.1}, {"lr": 0.2}], lambda run: 0.8 - run["lr"]))
    second.decide(Design(Goal("test_accuracy", 1), note="with <dropout>"))
    Experiment(root / "empty").plan([], {})

    index = write_report(root)

    assert index == root / "index.html"
    entries = list(parse(index).iter("article"))
    pages = [str(next(entry.iter("a")).get("href")) for entry in entries]
    assert pages == ["first/report.html", "second/report.html"]
    headlines = [text_of(by_id(parse(root / page), "headline")) for page in pages]
    texts = [[text_of(p) for p in entry.iter("p")] for entry in entries]
    assert [lines[-2] for lines in texts] == headlines
    assert headlines[0] == "Run 1 (lr=0.1) has test_accuracy 0.6"
    assert texts[0][-1].startswith("2 runs: 1 completed, 1 pending · ")
    assert texts[0][-1].endswith("1 of 2 runs is left to execute; start the same command again to execute it")
    assert texts[1][0] == "with <dropout>"
    assert texts[1][-1].startswith("2 runs: 2 completed · goal max:test_accuracy")


def test_an_index_elsewhere_leads_to_the_pages_too(tmp_path):
    for name in ("a", "b"):
        write_runs(tmp_path / "runs" / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])
    (tmp_path / "site").mkdir()

    index = write_report(tmp_path / "runs", tmp_path / "site" / "all.html")

    links = [str(link.get("href")) for link in parse(index).iter("a")]
    assert links == ["../runs/a/report.html", "../runs/b/report.html"]
    assert all((index.parent / link).is_file() for link in links)


def test_an_index_is_refused_if_it_is_the_page_of_an_experiment_or_no_experiment_has_the_metric(tmp_path):
    for name in ("a", "b"):
        write_runs(tmp_path / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])

    with pytest.raises(GridError, match="these runs have no column 'f1'"):
        write_report(tmp_path, goal="f1")
    with pytest.raises(GridError, match="is the page of an experiment: write the index elsewhere"):
        write_report(tmp_path, tmp_path / "a" / "report.html")

    assert list(tmp_path.rglob("*.html")) == []


def test_an_index_says_which_experiments_have_no_page(tmp_path):
    for name in ("a", "b", "c"):
        write_runs(tmp_path / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])
    Experiment(tmp_path / "b").decide(Design(Goal("f1", 1)))
    (tmp_path / "c" / "report.html").mkdir()  # cannot be replaced by a file

    index = parse(write_report(tmp_path))

    links = [str(link.get("href")) for link in index.iter("a")]
    assert links == ["a/report.html"]
    titles = [text_of(title) for title in index.iter("h2")]
    assert sorted(titles) == ["a", "b", "c"]
    assert "the goal is 'max:f1', but no run has that metric" in text_of(index)


@pytest.mark.slow(everywhere=True)
def test_another_metric_can_be_asked_for_and_small_losses_are_best(path, tmp_path):
    page = parse(write_report(path, tmp_path / "report.html", goal="loss"))

    assert text_of(by_id(page, "lead")).startswith(
        "lr=0.01 optimizer=adam device=cpu and lr=0.01 optimizer=adam device=cuda have the lowest loss so far: "
        "0.099. "
    )
    assert " below " in text_of(by_id(page, "why"))


def test_what_is_damaged_is_named(tmp_path):
    folder = write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])
    flip(journals(folder / "001-lr=0.1")[0], 0.3)

    page = report(folder)

    assert "1 damaged, the rest is complete: " in text_of(page)


@pytest.mark.slow(everywhere=True)
def test_nothing_is_written_when_it_is_refused(path, tmp_path):
    target = tmp_path / "report.html"
    target.write_text("before")

    with pytest.raises(GridError, match="these runs have no column 'f1'"):
        write_report(path, target, goal="f1")
    with pytest.raises(InvalidArgumentError, match="no runs under"):
        write_report(tmp_path, target)
    with pytest.raises(StorageError, match="No such file"):
        write_report(path, tmp_path / "missing" / "report.html")
    assert target.read_text() == "before"


def test_a_grid_of_integers_that_no_float_holds_is_reported(tmp_path):
    manager = RunManager("grid", tmp_path, display=False)
    for value in (10**400, 2**63, 3):
        with manager.run({"p": value}):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)

    page = write_report(tmp_path, tmp_path / "report.html").read_text("utf-8")

    assert "1" + "0" * 400 in page


@pytest.mark.slow(everywhere=True)
def test_experiments_side_by_side_name_what_differs(tmp_path):
    for name, gain, note in (("before", 0.0, ""), ("after", 0.1, "with dropout")):
        grid = [{"lr": lr, "depth": 3 if gain else 2} for lr in (0.1, 0.2, 0.3, 0.4)]
        path = write_runs(tmp_path / name, grid, lambda run, gain=gain: 0.5 + run["lr"] / 10 + gain)
        Experiment(path).decide(Design(note=note))

    page = parse(write_report([tmp_path / "before", tmp_path / "after"], tmp_path / "report.html"))

    rows = [[text_of(cell) for cell in row] for row in by_id(page, "differences").iter("tr")]
    assert rows[0] == ["what", "name", "before", "after", "difference"]
    assert ["note", "experiment", "", "with dropout", ""] in rows
    assert ["parameter", "depth", "2", "3", ""] in rows
    assert ["metric", "test_accuracy, leading setting", "0.54", "0.64", "0.1"] in rows
    assert "What differs" in text_of(next(page.iter("nav")))
    assert [text_of(p) for p in page.iter("p") if p.get("class") == "kicker"] == ["before and after"]


def test_each_run_has_the_folder_of_its_own_experiment(tmp_path):
    for name in ("a", "b"):
        write_runs(tmp_path / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])

    page = parse(write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "report.html"))

    homes = json.loads(text_of(by_id(page, "page-data")))["homes"]
    assert [homes["values"][code] for code in homes["codes"]] == [str(tmp_path / name) for name in "aabb"]


@pytest.mark.slow(everywhere=True)
def test_a_page_is_renewed_when_runs_change_until_it_is_interrupted(tmp_path, monkeypatch):
    grid = [{"lr": lr} for lr in (0.1, 0.2, 0.3)]
    pending = {2: Outcome(Status.PENDING)}
    write_runs(tmp_path / "grid", grid, lambda run: run["lr"], outcomes=pending)
    target = tmp_path / "report.html"
    lines: list[str] = []
    looks = []

    def sleep(seconds):
        assert seconds >= 2
        page = parse(target)
        looks.append(
            (text_of(by_id(page, "headline")), next(page.iter("body")).get("data-seconds"), target.stat())
        )
        if len(looks) == 2:
            done = dict.fromkeys((0, 1), Outcome(Status.PENDING))  # they are there already
            write_runs(tmp_path / "grid", grid, lambda run: run["lr"], outcomes=done)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    watch_runs(tmp_path / "grid", target, say=lines.append)

    assert [title for title, _, _ in looks] == [
        "Run 2 (lr=0.2) is best so far: test_accuracy 0.2",
        "Run 2 (lr=0.2) is best so far: test_accuracy 0.2",
        "Run 3 (lr=0.3) is best: test_accuracy 0.3",
    ]
    assert all(seconds for _, seconds, _ in looks)
    assert looks[0][2].st_ino == looks[1][2].st_ino  # nothing had changed
    assert next(parse(target).iter("body")).get("data-seconds") is None
    assert lines == [
        f"{target} is written and renewed until Ctrl-C: open it in a browser",
        f"{target} is written for the last time",
    ]


def test_the_numbers_of_a_column_have_equal_digits_and_durations_a_unit(tmp_path):
    grid = [{"lr": lr} for lr in (0.1, 0.01, 0.001)]
    scores = {0.1: 0.908, 0.01: 0.9188, 0.001: 0.75}
    path = write_runs(tmp_path / "grid", grid, lambda run: scores[run["lr"]])

    page = report(path)

    names, *rows = ([text_of(cell) for cell in row] for row in by_id(page, "runs").iter("tr"))
    columns = dict(zip([re.sub(r"[ ↕↑↓]", "", name) for name in names], zip(*rows, strict=True), strict=True))
    assert columns["test_accuracy"] == ("0.9188", "0.9080", "0.7500")
    assert columns["runduration"] == ("9.00 s",) * 3
    assert ticks_of_time() == ["0", "0.05 s", "0.1 s", "0.15 s"]


def ticks_of_time():
    busy = [Busy(run, "cpu", 0.09 * run, 0.09 * (run + 1), True) for run in range(2)]
    drawn = timeline(busy, None)
    assert drawn
    return re.findall(r">(0|[\d.]+ s)<", drawn[0])
