import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runmanager.live.columns import AxisColumn
from runmanager.live.picture import Picture
from runmanager.live.running import Running
from runmanager.outcome import BatchProgress, EpochRecord

PARAMS = {"lr": 0.01, "batch_size": 10000, "optimizer": "adam"}
AXES = [AxisColumn.of(name, [value]) for name, value in PARAMS.items()]
METRICS = {"test_accuracy": 0.5, "loss": 0.598666, "accuracy": 0.75, "test_loss": 0.7}
NEW = Running(7, PARAMS, 0, "cuda:0", 100.0, 100.0)
RUN = (
    NEW.after(BatchProgress(1, 9, 10), 101.0)
    .after(EpochRecord(1, METRICS), 110.0)
    .after(BatchProgress(2, 3, 10, 60), 112.0)
)
BEST = "test_accuracy 0.75 · run 3 · lr=0.1"
PICTURE = Picture("exp", [("cuda:0", RUN)], AXES, list(METRICS), BEST, 1, 4, 192.0, "12 min left", 115.0)


def drawn(picture, width=80, height=24):
    return ["".join(part.text for part in line).rstrip() for line in picture.draw(width, height)]


def test_a_line_for_each_lane_the_best_run_and_a_bar_fit_into_80_columns():
    picture = PICTURE._replace(lanes=[("cuda:0", RUN), ("cpu", replace(NEW, number=12))])

    assert drawn(picture) == [
        "device  run    lr  batch_size  optim…  epoch   step  test_acc    loss     time",
        "cuda:0    7  0.01       10000  adam     2/10   3/60       0.5  0.5987     0:15",
        "cpu      12  0.01       10000  adam                                       0:15",
        "best so far  test_accuracy 0.75 · run 3 · lr=0.1",
        "exp  ━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  1/4  3:12  12 min left",
    ]


def test_a_wide_terminal_shows_more():
    head, line, *_ = drawn(PICTURE, 140)

    assert head.split() == ["device", "run", *PARAMS, "epoch", "step", *METRICS, "time"]
    assert line.split() == [
        "cuda:0",
        "7",
        "0.01",
        "10000",
        "adam",
        "2/10",
        "3/60",
        "0.5",
        "0.5987",
        "0.75",
        "0.7",
        "0:15",
    ]


def test_a_metric_without_a_value_takes_no_room_from_hyperparameters():
    begun = PICTURE._replace(lanes=[("cuda:0", NEW.after(BatchProgress(1, 3, 10), 112.0))])

    head = drawn(begun, 64)[0]

    assert head.split() == ["device", "run", *PARAMS, "epoch", "step", "time"]
    assert drawn(PICTURE, 64)[0].split() == [
        "device",
        "run",
        "lr",
        "batch_size",
        "optim…",
        "epoch",
        "test_acc",
        "time",
    ]


@given(st.integers(1, 200))
def test_the_goal_is_the_last_metric_to_be_left_out(width):
    head = drawn(PICTURE, width)[0]

    assert "test_acc" in head or not {"loss", "accuracy", "test_loss"} & set(head.split())


def test_hyperparameters_keep_their_columns_while_runs_change():
    other = replace(RUN, params={"lr": 1, "batch_size": 1, "optimizer": "a"})
    axes = [
        AxisColumn("lr", 6, is_number=True),
        AxisColumn("batch_size", 10, is_number=True),
        AxisColumn("optimizer", 9, is_number=False),
    ]

    pictures = [PICTURE._replace(axes=axes, lanes=[("cpu", run)]) for run in (RUN, other)]

    assert len({drawn(picture, 100)[0] for picture in pictures}) == 1


def test_a_terminal_that_echoes_ctrl_c_behind_the_last_line_begins_no_new_one():
    name_that_fills_the_line = PICTURE._replace(name="x" * 200)

    assert cell_len(drawn(name_that_fills_the_line)[-1]) <= 80 - len("^C^C")


def test_metrics_that_a_run_does_not_have_have_no_column():
    assert drawn(PICTURE._replace(metrics=[], axes=[]))[0].split() == ["device", "run", "epoch", "step", "time"]


@pytest.mark.parametrize(("silent", "is_said"), [(30, False), (31, True), (312, True)])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_run_that_is_not_heard_of_is_shown_as_such(silent, is_said, width):
    line = drawn(PICTURE._replace(now=112.0 + silent), width)[1]

    assert (f"no news for {silent} s" in line) == is_said
    assert ("0.5987" in line) == (not is_said and width >= 80)


def test_a_lane_without_a_run_is_idle():
    assert drawn(PICTURE._replace(lanes=[("cuda:1", None)]))[1] == "cuda:1  idle"


def test_a_low_terminal_shows_some_of_the_lanes():
    lanes = [(f"cuda:{number}", RUN) for number in range(20)]

    lines = drawn(PICTURE._replace(lanes=lanes), height=10)

    assert len(lines) == 9
    assert lines[-3:-1] == ["and 15 more lanes", f"best so far  {BEST}"]
    assert lines[-1].startswith("exp")


RUNS = st.none() | st.builds(
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


@given(
    st.lists(st.tuples(st.text(max_size=9), RUNS), max_size=5),
    st.sampled_from(["", BEST, "日" * 50]),
    st.integers(1, 160),
    st.integers(5, 30),
    st.text("a日", max_size=40),
)
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(lanes, best, width, height, name):
    picture = PICTURE._replace(name=name, lanes=lanes, best=best, now=2e6)

    lines = drawn(picture, width, height)

    assert len(lines) < height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() or "\u0301" in line for line in lines)


def test_a_bar_without_color_shows_how_much_is_done():
    parts = [part.text for part in PICTURE.draw(80, 24)[-1]]

    assert len({*parts[1], *parts[2]}) == 2


def test_a_loss_that_is_not_a_number_is_written_as_such():
    run = NEW.after(EpochRecord(1, {"loss": float("nan")}), 110.0)

    assert "nan" in drawn(PICTURE._replace(lanes=[("cpu", run)], metrics=["loss"], now=110.0))[1].split()


def test_a_notebook_gets_the_same_as_a_table():
    page = PICTURE._replace(name="<b>", lanes=[("cuda:0", RUN), ("cpu", None)]).to_html()

    assert page.count("<tr>") == 3
    assert '<td style="text-align: right">0.5987</td>' in page
    assert re.search(r'role="progressbar" aria-valuenow="27.6".*27.6%.*</span> 1/4 · 3:12 · 12 min left', page)
    assert f"best so far: {BEST}" in page
    assert "<b>" not in page
