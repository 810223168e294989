import re
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runmanager.outcome import BatchProgress, EpochRecord
from runmanager.screen.picture import Picture
from runmanager.screen.run_rows import Row, RunColumns
from runmanager.screen.running import Running

PARAMS = {"lr": 0.01, "batch_size": 10000, "optimizer": "adam"}
METRICS = {"test_accuracy": 0.5, "loss": 0.598666, "accuracy": 0.75, "test_loss": 0.7}
NEW = Running(7, PARAMS, 0, "cuda:0", 100.0, 100.0)
RUN = (
    NEW.after(BatchProgress(1, 9, 10), 101.0)
    .after(EpochRecord(1, METRICS), 110.0)
    .after(BatchProgress(2, 3, 10, 60), 112.0)
)
BEST = "test_accuracy 0.75 · run 3 · lr=0.1"


def picture_of(*runs, now=115.0, columns=None, idle=(), **options):
    """Return the picture of runs, and of devices that are idle."""
    rows = [run.row(now) for run in runs] + [Row(device=device, notes=["idle"]) for device in idle]
    columns = (columns or RunColumns(list(PARAMS), list(METRICS))).holding(rows)
    return Picture("exp", columns, rows, BEST, 1, 4, 1.1, 192.0, "12 min left")._replace(**options)


PICTURE = picture_of(RUN)
SEVERAL = RunColumns(list(PARAMS), list(METRICS), has_device=True)


def drawn(picture, width=80, height=24):
    return [line.plain.rstrip() for line in picture.lines(width, height)]


def test_a_row_for_each_run_the_best_one_and_a_bar_fit_into_80_columns():
    assert drawn(picture_of(RUN, replace(NEW, number=12))) == [
        "   run    lr  batch_size  optimizer  epoch  run duration  test_accuracy    loss",
        "…    7  0.01       10000  adam        2/10          15 s         0.5000  0.5987",
        "…   12  0.01       10000  adam                      15 s",
        "best so far  test_accuracy 0.75 · run 3 · lr=0.1",
        "exp  ━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  1/4  3 min 12 s  12 min left",
    ]


def test_runs_on_several_devices_say_on_which():
    assert [line.split() for line in drawn(picture_of(RUN, columns=SEVERAL, idle=["cuda:1"]), 100)[:3]] == [
        ["run", *PARAMS, "device", "epoch", "run", "duration", "test_accuracy", "loss", "accuracy"],
        ["…", "7", "0.01", "10000", "adam", "cuda:0", "2/10", "15", "s", "0.5000", "0.5987", "0.7500"],
        ["cuda:1", "idle"],
    ]


def test_headings_that_are_above_in_sight_are_not_repeated():
    headings = PICTURE.columns.lines(PICTURE.rows, 80)[0]

    assert drawn(PICTURE._replace(above=(headings, 3)))[0].startswith("…")
    assert drawn(PICTURE._replace(above=(headings, 30)))[0] == headings[0]
    assert drawn(PICTURE._replace(above=(headings, 3)), 60)[1].split()[0] == "run"


def test_a_wide_terminal_shows_more():
    head, line, *_ = drawn(PICTURE, 140)

    assert head.split() == ["run", *PARAMS, "epoch", "run", "duration", *METRICS]
    values = ["0.01", "10000", "adam", "2/10", "15", "s", "0.5000", "0.5987", "0.7500", "0.7000"]
    assert line.split() == ["…", "7", *values, "step", "3/60"]


def test_hyperparameters_have_their_room_before_metrics_that_do_not_decide():
    assert drawn(PICTURE, 60)[1].split() == ["run", "lr", "size", "optimizer", "epoch", "duration", "accuracy"]


@given(st.integers(1, 200))
def test_the_goal_is_the_last_metric_to_be_left_out(width):
    head = " ".join(drawn(PICTURE, width)[:-3])

    assert "accuracy" in head or not {"loss", "test_loss"} & set(head.split())


def test_hyperparameters_keep_their_columns_while_runs_change():
    other = replace(RUN, params={"lr": 1, "batch_size": 1, "optimizer": "a"})
    columns = PICTURE.columns.holding([Row(params={"lr": 0.0001})])

    pictures = [picture_of(run, columns=columns) for run in (RUN, other)]

    assert len({drawn(picture, 100)[0] for picture in pictures}) == 1


def test_a_terminal_that_echoes_ctrl_c_behind_the_last_line_begins_no_new_one():
    name_that_fills_the_line = PICTURE._replace(name="x" * 200)

    assert cell_len(drawn(name_that_fills_the_line)[-1]) <= 80 - len("^C^C")


def test_metrics_that_a_run_does_not_have_have_no_column():
    lines = drawn(picture_of(NEW.after(BatchProgress(1, 3, 10, 60), 112.0), columns=RunColumns()))

    assert lines[0].split() == ["run", "epoch", "run", "duration"]
    assert lines[1].endswith("1/10          15 s  step 3/60")


@pytest.mark.parametrize(("silent", "is_said"), [(30, False), (31, True), (312, True)])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_run_that_is_not_heard_of_is_shown_as_such(silent, is_said, width):
    line = drawn(picture_of(RUN, now=112.0 + silent), width)[-3]

    assert (f"no news for {silent} s" in line) == is_said
    assert line.startswith("!" if is_said else "…")
    assert ("0.5000" in line) == (not is_said)


def test_a_device_without_a_run_is_idle():
    assert drawn(picture_of(columns=SEVERAL, idle=["cuda:1"]))[1].split() == ["cuda:1", "idle"]


def test_a_low_terminal_shows_some_of_the_runs():
    lines = drawn(picture_of(*[RUN] * 20), height=10)

    assert len(lines) == 9
    assert lines[-3:-1] == ["and 15 more lanes", f"best so far  {BEST}"]
    assert lines[-1].startswith("exp")


def test_a_run_that_was_resumed_says_where():
    resumed = NEW.after(BatchProgress(3, 9, 10, 60), 101.0)

    assert drawn(picture_of(resumed), 100)[1].endswith("step 9/60 · from epoch 3")


RUNS = st.builds(
    Running,
    number=st.integers(1, 10_000),
    params=st.dictionaries(
        st.sampled_from([*PARAMS, "other"]), st.text("a=日\u0301 0", max_size=30) | st.floats()
    ),
    lane=st.integers(0, 9),
    device=st.text(max_size=9),
    started=st.floats(0, 1e6),
    heard=st.floats(0, 1e6),
    epoch=st.integers(0, 10_000),
    step=st.integers(0, 10**6),
    num_epochs=st.none() | st.integers(1, 10_000),
    metrics=st.just(METRICS),
)


@pytest.mark.slow(everywhere=True)
@given(
    st.lists(RUNS, max_size=5),
    st.sampled_from(["", BEST, "日" * 50]),
    st.integers(1, 160),
    st.integers(5, 30),
    st.text("a日", max_size=40),
    st.booleans(),
)
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(runs, best, width, height, name, has_device):
    columns = SEVERAL if has_device else None
    picture = picture_of(*runs, now=2e6, columns=columns, idle=["cpu"], name=name, best=best)

    lines = drawn(picture, width, height)

    assert len(lines) < height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() or "\u0301" in line for line in lines)


def test_a_bar_without_color_shows_how_much_is_done():
    bar = drawn(PICTURE)[-1].split()[1]

    assert {*bar} == {"━", "╌"}


def test_a_loss_that_is_not_a_number_is_written_as_such():
    run = NEW.after(EpochRecord(1, {"loss": float("nan")}), 110.0)

    assert "nan" in drawn(picture_of(run, columns=RunColumns([], ["loss"])))[1].split()


def ended(number, *, is_completed=True, **options):
    sign, notes = ("✓", [""]) if is_completed else ("✗", ["failed · KeyError: <b>", "failed"])
    return Row(f"{sign} {number:>3}/300", str(number), PARAMS, epoch="10/10", notes=notes, **options)


def rows_of(html):
    """Return the texts of the cells of each row of a page, and the headings of what is folded."""
    parts = re.findall(r"<tr>.*?</tr>|<summary>.*?</summary>|<div>.*?</div>", html, flags=re.DOTALL)
    cells = [re.sub(r"<br>|</t[hd]>", "|", part) for part in parts]
    return [unescape(re.sub(r"<[^>]*[a-z/\"]>", "", each)).rstrip("| ") for each in cells]


def test_a_notebook_has_running_and_ended_runs_in_one_table():
    done = ended(1, metrics=METRICS)
    page = picture_of(RUN, ended_rows=[done])._repr_html_()

    assert page.count("<table") == 1
    assert rows_of(page)[:3] == [
        "|run|lr|batch_size|optimizer|epoch|run duration|test_accuracy|loss|accuracy|test_loss",
        "✓ 1/300|1|0.01|10000|adam|10/10||0.5000|0.5987|0.7500|0.7000",
        "… |7|0.01|10000|adam| 2/10|15 s|0.5000|0.5987|0.7500|0.7000|step 3/60",
    ]


def test_a_notebook_gives_a_long_cause_and_the_next_step_a_row_of_their_own():
    short, long = ended(1, is_completed=False, next_step="fix <it>"), ended(2, is_completed=False)
    long = replace(long, notes=[f"failed · {'x' * 50}", "failed"], cause="x" * 50)

    page = picture_of(ended_rows=[short, long], is_over=True)._repr_html_()

    assert [row.split("|")[-1] for row in rows_of(page)[1:]] == [
        "failed · KeyError: <b>", "fix <it>", "failed", "x" * 50
    ]  # fmt: skip
    assert "accuracy" not in page  # no run has one


def test_a_notebook_shows_the_last_runs_and_folds_all_at_the_end():
    picture = picture_of(RUN, ended_rows=list(map(ended, range(1, 301))))

    live, over = rows_of(picture._repr_html_()), rows_of(picture._replace(is_over=True)._repr_html_())

    assert live[0] == "(292 earlier runs not shown)"
    assert [row.split("|")[1] for row in live[2:-2]] == [*map(str, range(293, 301)), "7"]
    assert over[0] == "300 ended runs, the last 200"
    assert len(over) == 202


def test_a_notebook_gets_the_same_as_a_table():
    page = picture_of(RUN, columns=SEVERAL, idle=["cpu"], name="<b>", done=1.104)._repr_html_()

    assert page.count("<tr>") == 3
    assert re.search(r"<td style=\"text-align: right;[^>]*>0\.5987</td>", page)
    assert re.search(r'<progress .*value="27.6" .*> 1/4 · 3 min 12 s · 12 min left', page)
    assert f"best so far: {BEST}" in page
    assert "<b>" not in page
