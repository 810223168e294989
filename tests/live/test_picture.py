from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runmanager.executors import BatchProgress
from runmanager.live.picture import Picture, Running, clock, label
from runmanager.outcome import EpochRecord

LABEL = ("lr=0.01", "batch_size=10000", "optimizer=adam")
METRICS = {"loss": 0.598666, "accuracy": 0.75, "test_loss": 0.7, "test_accuracy": 0.5}
NEW = Running(7, {}, LABEL, 0, "cuda:0", 100.0, 100.0)
RUN = (
    NEW.after(BatchProgress(1, 9, 10), 101.0)
    .after(EpochRecord(1, METRICS), 110.0)
    .after(BatchProgress(2, 3, 10), 112.0)
)
PICTURE = Picture("exp", [("cuda:0", RUN)], 39, list(METRICS), 1, 4, 192.0, "about 12 min left", 115.0)


def drawn(picture, width=80, height=24):
    return ["".join(part.text for part in line).rstrip() for line in picture.draw(width, height)]


def test_a_line_for_each_lane_and_a_bar_fit_into_80_columns():
    picture = PICTURE._replace(lanes=[("cuda:0", RUN), ("cpu", replace(NEW, number=12))])

    assert drawn(picture) == [
        "device  run                              epoch   step    loss  accuracy     time",
        "cuda:0    7  lr=0.01 batch_size=10000 …   2/10      3  0.5987      0.75     0:15",
        "cpu      12  lr=0.01 batch_size=10000 …                                     0:15",
        "exp  ━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  1/4  3:12  about 12 min left",
    ]


def test_a_wide_terminal_shows_more():
    head, line = drawn(PICTURE, 140)[:2]

    assert head.split() == ["device", "run", "epoch", "step", *METRICS, "time"]
    assert line.endswith(" 2/10      3  0.5987      0.75        0.7            0.5     0:15")
    assert " ".join(LABEL) in line


def test_a_terminal_that_echoes_ctrl_c_behind_the_last_line_begins_no_new_one():
    name_that_fills_the_line = PICTURE._replace(name="x" * 200)

    assert cell_len(drawn(name_that_fills_the_line)[-1]) <= 80 - len("^C^C")


def test_metrics_that_a_run_does_not_have_have_no_column():
    assert drawn(PICTURE._replace(metrics=[]))[0].split() == ["device", "run", "epoch", "step", "time"]


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
    assert lines[-2] == "and 14 more lanes"
    assert lines[-1].startswith("exp")


RUNS = st.none() | st.builds(
    Running,
    number=st.integers(1, 10_000),
    params=st.just({}),
    label=st.lists(st.text("a=日\u0301 0", max_size=30), max_size=4),
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
    st.integers(0, 60),
    st.integers(1, 160),
    st.integers(5, 30),
    st.text("a日", max_size=40),
)
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(lanes, label_width, width, height, name):
    picture = PICTURE._replace(name=name, lanes=lanes, label_width=label_width, now=2e6)

    lines = drawn(picture, width, height)

    assert len(lines) < height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() or "\u0301" in line for line in lines)


def test_time_is_told_after_the_first_epoch():
    begun = NEW.after(BatchProgress(1, 1, 4), 101.0).after(BatchProgress(1, 10, 4), 108.0)
    after_one = begun.after(EpochRecord(1, {}), 110.0)

    assert (NEW.total, begun.total) == (None, None)
    assert (after_one.done, after_one.total, after_one.part) == (0.25, 37.0, 1.0)
    assert after_one.after(BatchProgress(2, 5, 4), 115.0).done == 0.375
    assert after_one.after(EpochRecord(2, {}), 120.0).total == 39.0  # the first second is not repeated


def test_where_the_loader_says_how_many_batches_there_are_the_first_epoch_tells_the_time():
    begun = NEW.after(BatchProgress(1, 1, 1, 60, 2.3), 103.0)
    later = begun.after(BatchProgress(1, 31, 1, 60, 1.2), 118.0)

    assert (begun.done, begun.total) == (1 / 60, None)
    assert later.total == pytest.approx(3 + 0.5 * 59)  # 3 s to the first batch, half a second for each other
    picture = PICTURE._replace(lanes=[("cpu", later)], metrics=["loss"], now=118.0)
    assert drawn(picture, 100)[1].split()[-5:] == [
        "optimizer=adam", "1/1", "31/60", "1.2", "0:18",
    ]  # fmt: skip


def test_a_bar_without_color_shows_how_much_is_done():
    parts = [part.text for part in PICTURE.draw(80, 24)[-1]]

    assert len({*parts[1], *parts[2]}) == 2


def test_a_loss_that_is_not_a_number_is_written_as_such():
    run = NEW.after(EpochRecord(1, {"loss": float("nan")}), 110.0)

    assert "nan" in drawn(PICTURE._replace(lanes=[("cpu", run)], metrics=["loss"], now=110.0))[1].split()


def test_a_run_that_goes_on_counts_the_epochs_that_it_executes():
    run = NEW.after(BatchProgress(7, 1, 10), 101.0).after(EpochRecord(7, {}), 110.0)

    assert (run.part, run.done, run.total) == (0.4, 0.25, 37.0)


def test_without_the_number_of_epochs_no_time_is_told():
    run = NEW.after(EpochRecord(1, {}), 110.0)

    assert (run.part, run.done, run.total) == (1.0, 0.0, None)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(1, 9)), max_size=9), st.integers(1, 9))
def test_whatever_is_heard_a_part_is_a_part(news, num_epochs):
    run = NEW
    for is_record, epoch, step in news:
        run = run.after(EpochRecord(epoch, {}) if is_record else BatchProgress(epoch, step, num_epochs), 200.0)

    assert 0 <= run.done <= 1
    assert 0 < run.part <= 1


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"lr": 0.010, "size": (3, 3)}, ["lr=0.01", "size=(3, 3)"]),
        ({"size": "a\nb"}, ["size=a\\nb"]),
        ({"size": "x" * 99}, [f"size={'x' * 19}…"]),
        ({}, []),
    ],
)
def test_a_run_is_named_by_what_varies(params, shown):
    assert label({"seed": 1, **params}, ["lr", "size"]) == shown


def test_a_clock_shows_hours_where_there_are_some():
    assert [clock(seconds) for seconds in (0, 59.9, 60, 3600, 360_000)] == [
        "0:00",
        "0:59",
        "1:00",
        "1:00:00",
        "100:00:00",
    ]
