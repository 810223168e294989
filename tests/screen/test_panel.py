import contextlib
import html
import io
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from runmanager import SuccessiveHalving, best, load_run, load_runs, run_grid, show, write_report
from runmanager.answers.conclusion import conclude
from runmanager.cli.app import app
from runmanager.outcome import Status
from runmanager.screen.panel import Panel
from tests.locations import line_with
from tests.report import reading
from tests.terminal import Screen, screen_of

HOME = Path(__file__).parents[2]
PROGRAM = """
import math, sys, time

from runmanager import SuccessiveHalving, run_grid


def train(run, manager):
    if run.lr == 0.4:
        raise ValueError(f"width {run.width} is too much")
    with manager.run(run):
        for epoch in manager.epochs(2, checkpoint={}):
            time.sleep(PAUSE)
            manager.track_loss(math.nan if run.lr == 0.3 and run.width == 9 else run.lr, 1)
            manager.track(val_accuracy=0.5 + run.lr + 0.001 * run.seed * run.width, val_loss=run.lr)


PAUSE = 0
GRID = {"lr": [0.1, 0.2, 0.3, 0.4], "width": [8, 9], "seed": [1, 2, 3], "device": ["cpu"]}
OPTIONS = {"experiment": "e", "executor": "inline", "tensorboard": False}
"""
SMALL = {"lr": [0.1, 0.2], "width": [8, 9]}
TITLE = f"━━ runs/e · 15 completed · 6 failed · 3 diverged {'━' * 31}"
FAILED = [
    "✗ failed: all 6 runs with lr=0.4",
    "    ValueError: width 8 or 9 is too much (in program.py:9)",
    "    see runmanager show runs/e/19; once the cause is fixed, retry_failed=True",
    "    executes the runs again",
    "✗ diverged: all 3 runs with lr=0.3 and width=9",
    "    loss became nan in epoch 1, step 1",
    "    not repeated: the same numbers would diverge again",
]
NEXT = [
    "next    runmanager report runs/e  # a page: which is best, and why",
    "        runmanager list runs/e    # all runs",
]


def train_small(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)
            manager.track(val_accuracy=run.lr + 0.01 * run.width, val_loss=run.lr)


def start(warm, tmp_path, options="", grid="GRID", pause=0, **terminal):
    """Return the lines of the panel that a program's grid ends in, without how long it took, and the screen."""
    (tmp_path / "program.py").write_text(
        f"{PROGRAM}PAUSE = {pause}\nif __name__ == '__main__':\n"
        f"    run_grid({grid}, train, **OPTIONS{options})\n"
    )
    screen = screen_of(warm, tmp_path / "program.py", **terminal)
    return panel_of(screen.lines), screen


def panel_of(lines):
    title = next(index for index, line in enumerate(lines) if line.startswith(("━━ ", "== ")))
    return [line for line in lines[title:] if line]


def without_time(lines):
    begin = next(index for index, line in enumerate(lines) if line.startswith("time "))
    end = next(index for index, line in enumerate(lines) if line.startswith("next "))
    return [*lines[:begin], *lines[end:]]


def test_a_grid_ends_in_a_panel_that_fits_80_columns(warm, tmp_path):
    lines, screen = start(warm, tmp_path, ", repeats='seed'")

    rows = [line for line in lines if line.startswith("  0.") and " to " in line and line.endswith(" s")]
    assert [re.sub(" +run duration$", "  run duration", line) for line in without_time(lines)] == [
        TITLE,
        "! lr=0.3 width=8 leads the other 4 settings, but 3 seeds do not decide it",
        "    lr=0.3 width=8 has the highest val_accuracy: 0.816, the mean of 3 seeds,",
        "    95 % interval 0.7961 to 0.8359.",
        "    The closest, lr=0.2 width=9, is 0.098 behind; a verdict needs at least 8",
        "    seeds; such a lead takes about 8 in half of the cases (5 more); 3 settings",
        "    have no result (3 diverged, 6 failed).",
        "   lr  width  val_accuracy  95 % interval     repeats  val_loss  run duration",
        *rows,
        "  (5 of 8 settings are ranked; intervals are per setting, the verdict compares",
        "  all 28 pairs)",
        *FAILED,
        "matters Changing lr alone changes val_accuracy by 0.13 on average, width by",
        "        0.002; repeats of a setting differ by 0.0095.",
        *NEXT,
    ]
    assert [line.split()[:3] for line in rows] == [
        ["0.3", "8", "0.816"],
        ["0.2", "9", "0.718"],
        ["0.2", "8", "0.716"],
        ["0.1", "9", "0.618"],
        ["0.1", "8", "0.616"],
    ]
    (time,) = (line for line in lines if line.startswith("time "))
    assert re.match(r"time    [\d.]+ s: \d+ % \w+", time)
    assert "1" in screen.style_of("lr=0.3 width=8 leads").split(";")
    assert [screen.style_of(text) for text in ("! lr=0.3", "✗ failed:", "✗ diverged:")] == ["33", "31", "31"]


@pytest.mark.parametrize(
    ("width", "names", "left_out"),
    [
        (42, "run lr width val_accuracy val_loss", "run duration"),
        (31, "run lr width accuracy", "val_loss, run duration"),
        (80, "run lr width val_accuracy val_loss run duration", ""),
        (200, "run lr width val_accuracy val_loss run duration", ""),
    ],
)
def test_columns_that_do_not_fit_have_folded_headings_or_are_left_out_and_named(
    tmp_path, monkeypatch, width, names, left_out
):
    monkeypatch.chdir(tmp_path)
    panel = outcome_of(tmp_path, {**SMALL, "lr": [0.1, 0.2, 0.3, 0.35]}).panel
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system="standard").print(panel, soft_wrap=True)
    screen = Screen(width)
    screen.feed(file.getvalue().replace("\n", "\r\n"))

    lines = screen.lines
    heading = next(index for index, line in enumerate(lines) if line.startswith("  run "))
    assert lines[heading].split() == names.split()
    assert all(len(line.split()) >= len(names.split()) for line in lines[heading : heading + 6])
    below = " ".join(line.strip() for line in lines[heading + 6 :])
    assert f"(the first 5; all 8 runs are ranked{left_out and f'; not shown: {left_out}'})" in below
    assert file.getvalue().count("\n") == len(lines) - 1  # no line is longer than the terminal
    assert ["1" in screen.style_of(line.strip()) for line in lines[heading + 1 : heading + 3]] == [True, False]


def outcome_of(tmp_path, grid, train=train_small, **options):
    options = {"executor": "inline", "tensorboard": False, "display": False, **options}
    return run_grid(grid, train, experiment="e", root=tmp_path, **options)


@pytest.mark.slow
def test_a_file_gets_the_panel_without_colors(tmp_path):
    (tmp_path / "program.py").write_text(f"{PROGRAM}run_grid(GRID, train, **OPTIONS)")

    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(HOME), "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii:replace"},
    )  # fmt: skip

    assert done.stderr == ""
    lines = panel_of(done.stdout.splitlines())
    assert "\x1b" not in done.stdout
    assert lines[0].startswith("== runs/e - 15 completed - 6 failed - 3 diverged ===")
    rule = "By its name, seed only repeats a setting; repeats=() says that no axis does."
    assert f"    {rule}" in lines


@pytest.mark.slow
def test_ctrl_c_ends_in_a_panel_that_says_what_is_left(warm, tmp_path):
    lines, _ = start(
        warm, tmp_path, grid="{**GRID, 'lr': [0.1, 0.2]}", pause=0.3,
        interrupt_when=lambda lines: any(line.startswith("✓  4/12") for line in lines),
    )  # fmt: skip

    assert lines[0].startswith("━━ runs/e · 4 completed · ")
    assert lines[1].startswith("! Undecided between lr=0.1 width=8 and the other 3 settings after 1 seed")
    lead = "    lr=0.1 width=8 has the highest val_accuracy so far: 0.616, the mean"
    assert any(line.startswith(lead) for line in lines)
    left = next(index for index, line in enumerate(lines) if line.startswith("! 8 of 12 runs are left"))
    assert "    start the same command again; 4 completed runs are kept" in lines[left : left + 3]


def text_of(tmp_path, grid, train=train_small, **options):
    return without_time(str(outcome_of(tmp_path, grid, train, **options).panel).splitlines())


def test_of_several_goals_the_table_has_the_pareto_front(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=run.lr, cost=run.lr if run.width == 8 else 2.0)

    lines = text_of(tmp_path, SMALL, train, goal=["max:score", "min:cost"])

    heading = next(index for index, line in enumerate(lines) if line.startswith("  run "))
    assert [line.split()[:3] for line in lines[heading + 1 : heading + 3]] == [
        ["3", "0.2", "8"],
        ["1", "0.1", "8"],
    ]
    assert lines[heading + 3] == "  (the Pareto front, 2 runs; all 4 runs are ranked)"


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(("first", "shown"), [(0.20268812345, "0.2027"), (0.20268, "")])
def test_every_surface_leads_to_all_digits_of_a_rounded_number(tmp_path, first, shown):
    panel = "\n".join(text_of(tmp_path, {"lr": [first, 0.1], "width": [1]}, train_small))
    runs = load_runs(tmp_path / "e")
    page = reading.parse(write_report(tmp_path / "e", tmp_path / "page.html"))
    texts = {
        "panel": panel,
        "page": reading.text_of(page),
        "best()": repr(show(best(runs))),
        "show()": repr(show(runs)),
        "setting": repr(show(runs, repeats="width")),
        "best": CliRunner(env={"COLUMNS": "300"}).invoke(app, ["best", str(tmp_path / "e")]).output,
    }

    step = f"runmanager show {tmp_path}/e/1"
    assert {name for name, text in texts.items() if step in text} == (set(texts) if shown else set())
    assert f"Run 1 (lr={shown or first}) is best" in panel


@pytest.mark.parametrize("after", [0, 2])
def test_a_grid_that_ctrl_c_broke_off_names_all_axes_and_no_failure(tmp_path, after):
    ended: list[Any] = []

    def train(run, manager):
        if len(ended) == after:
            raise KeyboardInterrupt
        train_small(run, manager)
        ended.append(run)

    with contextlib.suppress(KeyboardInterrupt):
        text_of(tmp_path, {**SMALL, "device": ["cpu", "cuda:9"]}, train)
    runs = load_runs(tmp_path / "e")
    panel = str(Panel(conclude(runs, tmp_path / "e", is_over=False)))

    assert "runs that failed" not in panel
    assert "runmanager show" not in panel
    assert "! unavailable: all 4 runs with device=cuda:9" in panel
    if after:
        assert "! Run 3 (lr=0.1 width=9) is best so far: val_accuracy 0.19" in panel
        assert "2 completed runs are kept" in panel
    else:
        assert "4 of 8 runs are left to execute\n    start the same command again\n" in panel


def test_a_grid_without_its_device_has_nothing_to_show(tmp_path, capsys):
    lines = str(
        outcome_of(tmp_path, {"lr": [1, 2], "device": ["cuda:9"]}, fail, display=True).panel
    ).splitlines()

    begin, _, end = capsys.readouterr().out.partition("device 'cuda:9' is not there, this machine has ")
    assert begin.endswith("\n! unavailable: both runs\n    ")
    assert "is not there" not in end
    assert end.splitlines()[1] == "    on a machine that has it, the same command executes them"
    assert lines[1:3] == ["! No run could start", "! unavailable: both runs"]
    assert lines[-2:] == ["time    no run was begun", f"next    runmanager list {tmp_path}/e  # all runs"]


def fail(run, manager):
    raise ValueError(f"no {run.lr}")


@pytest.mark.slow(everywhere=True)
def test_a_grid_of_failures_has_no_best_run(tmp_path):
    lines = text_of(tmp_path, SMALL, fail)

    assert lines[0].startswith(f"━━ {tmp_path}/e · 4 failed ━")
    assert lines[1:4] == [
        "! No run has completed",
        "✗ failed: all 4 runs",
        f"    ValueError: no 0.1 or 0.2 (in {line_with('no {run.lr}')})",
    ]
    assert " ".join(lines).count(f"runmanager show {tmp_path}/e/1") == 1
    assert lines[-1].startswith(f"next    runmanager list {tmp_path}/e")


@pytest.mark.slow(everywhere=True)
def test_runs_that_are_completed_without_a_number_are_not_called_incomplete(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(reward=float("nan"))

    lines = text_of(tmp_path, SMALL, train, goal="max:reward")

    assert lines[1] == "! No completed run has a number for reward"


def test_runs_without_a_number_are_counted_below_the_best(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(reward=math.nan if run.lr > 2 else run.lr)

    lines = text_of(tmp_path, {"lr": [1, 2, 3, 4, 5]}, train, goal="max:reward")

    assert "  (2 of 5 runs are ranked; 3 completed without a number)" in lines


def test_the_note_is_below_the_title(tmp_path):
    outcome = outcome_of(tmp_path, SMALL, note="does <width> matter?")

    assert str(outcome.panel).splitlines()[1] == "note: does <width> matter?"
    assert "<p>note: does &lt;width&gt; matter?</p>" in outcome._repr_html_()


def test_a_single_run_is_no_choice(tmp_path):
    lines = text_of(tmp_path, {"lr": [0.1], "width": [8]})

    assert lines[1] == "✓ Run 1 has val_accuracy 0.18"
    assert len(lines) == 4
    steps = conclude(load_runs(tmp_path / "e"), tmp_path / "e", has_events=False).steps
    assert [step.purpose for step in steps] == ["a page: its curves and settings", "the run"]


def test_a_grid_with_nothing_left_says_what_it_took_before(tmp_path):
    outcome_of(tmp_path, SMALL)

    panel = str(outcome_of(tmp_path, SMALL).panel)

    assert re.search(r"\ntime    nothing was left to execute; its runs took [\d.]+ s before\n", panel)
    assert "✓ Run 4 (lr=0.2 width=9) is best: val_accuracy 0.29\n    That is 0.01 above the next" in panel


def test_pruned_runs_are_no_failures(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(9, checkpoint={}):
                manager.track(val_accuracy=run.lr + run.width)

    grid = {"lr": [0.3, 0.2, 0.1], "width": [9, 8]}
    lines = text_of(tmp_path, grid, train, prune=SuccessiveHalving("val_accuracy"))

    assert lines[0].startswith(f"━━ {tmp_path}/e · 1 completed · 5 pruned ━") or "pruned" in lines[0]
    assert "    the same grid without prune= continues them" in lines
    assert not any(line.startswith("✗") for line in lines)
    assert lines[1].startswith("✓ Run 1 (lr=0.3 width=9) ")
    page = reading.parse(write_report(tmp_path / "e", tmp_path / "report.html"))
    assert not [element for element in page.iter() if element.get("id") == "wrong"]
    assert "the best first by val_accuracy, then pruned runs by their last epoch." in reading.text_of(page)
    rows = list(next(table for table in page.iter("table") if table.get("id") == "runs").iter("tr"))[1:]
    scores = [float(reading.text_of(row[1])) for row in rows]
    assert scores == sorted(scores, reverse=True)
    legend = reading.text_of(reading.by_id(page, "picture"))
    assert "lr: 0.1 0.2 0.3" in legend


def test_a_metric_of_unknown_direction_is_asked_for(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(kl=run.lr, entropy=run.width)

    assert text_of(tmp_path, SMALL, train)[1] == (
        '! Which run is best? No metric is the default: give goal="max:kl" or goal="min:kl" (or of entropy); '
        "nothing is executed"
    )
    assert text_of(tmp_path, SMALL, train, goal="min:kl")[1].startswith(
        "✓ Run 1 (lr=0.1 width=8) and run 2 (lr=0.1 width=9) are best: kl 0.1"
    )


@pytest.mark.slow(everywhere=True)
def test_a_grid_that_tracks_nothing_has_no_best_run(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                pass

    best = " ".join(text_of(tmp_path, SMALL, train)[1:3])
    assert best.startswith(
        "! No run has a number to be ranked by: write manager.track_loss(loss, labels) or track("
    )


@pytest.mark.slow(everywhere=True)
def test_values_from_outside_are_readable_and_cannot_steer_a_terminal(tmp_path):
    grid = {"net": ["\x1b[31mred", "x" * 200], "lr": [math.nan, None]}

    lines = text_of(tmp_path, grid, train_nothing_but_a_loss)

    assert [line.split()[:3] for line in lines if line.startswith("    ") and line.endswith(" s")] == [
        ["1", "\\x1b[31mred", "nan"],
        ["2", "\\x1b[31mred", "None"],
        ["3", "x" * 19 + "…", "nan"],
        ["4", "x" * 19 + "…", "None"],
    ]


def train_nothing_but_a_loss(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)


@pytest.mark.slow(everywhere=True)
def test_an_axis_that_repeats_by_its_name_does_unless_repeats_say_otherwise(tmp_path):
    rule = "By its name, seed only repeats a setting; repeats=() says that no axis does."
    grid = {**SMALL, "seed": [1, 2]}

    panel = text_of(tmp_path, grid)

    assert any("lr=0.2 width=9 has the highest " in line and "the mean of 2 seeds" in line for line in panel)
    assert f"    {rule}" in panel
    page = reading.parse(write_report(tmp_path / "e", tmp_path / "report.html"))
    assert reading.text_of(reading.by_id(page, "assumption")) == rule  # one rule for both
    assert rule not in str(outcome_of(tmp_path, grid, repeats="seed").panel)
    one_by_one = str(outcome_of(tmp_path, grid, repeats=()).panel)
    assert "✓ Run " in one_by_one
    assert rule not in one_by_one


def test_a_path_is_quoted_where_a_shell_needs_it(tmp_path):
    root = tmp_path / "my runs"

    assert f"next    runmanager report '{root}/e'" in str(outcome_of(root, SMALL).panel)


@pytest.mark.slow(everywhere=True)
def test_many_causes_are_cut(tmp_path):
    def train(run, manager):
        raise [KeyError, ValueError, TypeError, IndexError, OSError, LookupError, RuntimeError][run.lr]

    lines = text_of(tmp_path, {"lr": list(range(7))}, train)

    assert sum(line.startswith("✗ failed: run ") for line in lines) == 5
    assert lines[lines.index("✗ 2 more causes") + 1] == f"    see runmanager list {tmp_path}/e"


def test_a_notebook_gets_calls_of_python_as_next_steps(tmp_path):
    outcome = outcome_of(tmp_path, {"lr": [0.1, 0.2]}, fail)
    page = html.unescape(outcome._repr_html_())

    assert "runmanager " not in page
    assert "retry_failed=True" in page
    call = f'load_run("{tmp_path}/e/1").error'
    assert f"see {call}; once the cause is fixed" in page
    assert f'<code>show(load_runs("{tmp_path}/e"))</code>' in page
    assert "no 0.1" in load_run(f"{tmp_path}/e/1").error


def test_the_bars_of_a_notebook_are_those_of_show(tmp_path):
    outcome = outcome_of(tmp_path, SMALL)

    def bars(page: str) -> list[str]:
        return re.findall(r"(\d+)%, transparent", page)

    assert bars(outcome._repr_html_()) == bars(show(outcome.runs)._repr_html_())
    assert bars(outcome._repr_html_())[-1] == "10"  # of 0.18, beside 0.29


def test_only_a_plan_has_no_panel(tmp_path):
    outcome = outcome_of(tmp_path, SMALL, plan_only=True)

    assert outcome.panel is None
    assert repr(outcome) == f"<GridOutcome of {tmp_path}/e: 4 pending; exit code 0>"
    assert "4 pending" in outcome._repr_html_()


def test_the_panel_is_logged_too(tmp_path, caplog):
    caplog.set_level("INFO", "runmanager")

    outcome = outcome_of(tmp_path, SMALL)

    assert caplog.messages[-len(str(outcome.panel).splitlines()) :] == str(outcome.panel).splitlines()
    assert {outcome.status for _, outcome in outcome.outcomes} == {Status.COMPLETED}


NOTEBOOK = f"""
import warnings
warnings.simplefilter("error")
{PROGRAM}
outcome = run_grid(GRID, train, **OPTIONS, repeats="seed")
outcome
"""


@pytest.mark.slow
def test_a_notebook_draws_the_panel_once_in_a_cell(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(source) for source in (NOTEBOOK, "outcome")]
    notebook = nbformat.v4.new_notebook(cells=cells)

    nbclient.NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}}).execute()

    *displayed, same_cell = cells[0].outputs
    (next_cell,) = cells[1].outputs
    assert same_cell.data["text/plain"] == next_cell.data["text/plain"]
    assert same_cell.data["text/plain"] == (
        "<GridOutcome of runs/e: 15 completed, 3 diverged, 6 failed; exit code 1>"
    )
    assert same_cell.data["text/html"] == ""
    page = next_cell.data["text/html"]
    assert displayed[-1].data["text/html"] == page
    assert "lr=0.3 width=8 leads the other 4 settings, but 3 seeds do not decide it" in page
    assert "lr=0.3 width=8 has the highest val_accuracy: 0.816, the mean of 3 seeds" in page
    assert page.count("linear-gradient") == 5
    assert "failed: all 6 runs with lr=0.4" in page
    assert "<code>write_report(&quot;runs/e&quot;)</code>" in page


def train_foreign(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(2):
            manager.track(train_loss=run.lr, val_loss=run.lr, val_acc=0.9 - run.lr, env_steps=1000 * epoch)
        manager.summary(test_acc=0.8 - run.lr)


@pytest.mark.slow(everywhere=True)
def test_the_table_has_what_the_program_logged_beside_the_goal_as_far_as_it_fits(tmp_path):
    root = tmp_path / "runs"
    grid = {"lr": [0.1, 0.2], "width": [8, 9]}
    outcome = run_grid(grid, train_foreign, experiment="e", root=root, executor="inline", display=False)

    wide, narrow = ([line.plain for line in outcome.panel.lines(width)] for width in (100, 54))

    (headings,) = (line.split() for line in wide if "val_acc" in line and "val_loss" in line)
    assert headings == [
        "run",
        "lr",
        "width",
        "val_acc",
        "val_loss",
        "run",
        "duration",
        "train_loss",
        "env_steps",
        "test_acc",
    ]
    assert "not shown: train_loss, env_steps, test_acc" in " ".join(" ".join(narrow).split())
    assert "best val_acc first" in str(show(load_runs(root)))
    assert "env_steps=2000" in str(show(load_runs(root)))
