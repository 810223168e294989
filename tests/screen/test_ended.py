from dataclasses import replace
from pathlib import Path

import pytest

from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.screen.ended import ended_row
from runmanager.screen.run_rows import Row, RunColumns
from runmanager.screen.running import Running
from runmanager.storage.folders import RunFolder

METRICS = {"test_accuracy": 0.75, "loss": float("nan")}
FIRST, TENTH = {"lr": 0.1, "net": "a"}, {"lr": 0.01, "net": "resnet"}
RUNNING = Running(3, FIRST, 0, "cpu", 0.0, 0.0, num_epochs=10).after(EpochRecord(4, METRICS), 1.0)
COLUMNS = RunColumns(["lr", "net"], list(METRICS)).holding(
    Row("✓ 12/12", number, params) for number, params in (("3", FIRST), ("10", TENTH))
)


def ended(count, number, params, outcome, running, seconds):
    folder = RunFolder(Path("runs/exp/7_x"), number, str(number), params)
    if running:
        running = replace(running, metrics={**METRICS, "run duration": seconds})
    return ended_row(count, folder, outcome, running, METRICS if running else {})


COMPLETED = ended(" 7/12", 3, FIRST, Outcome(Status.COMPLETED), RUNNING, 83.0)


def failed(status, error, **options):
    return ended(" 8/12", 10, TENTH, Outcome(status, error, **options), replace(RUNNING, first=1), 2.04)


def rows(*all_ended, width):
    """Return the headings and the rows, as they are printed one after the other."""
    columns = COLUMNS.holding(all_ended)
    headings = columns.lines(all_ended[:1], width)[0]
    return [*headings, *(line for row in all_ended for line in columns.explained(row, width))]


def test_a_line_in_words_names_each_value():
    assert COLUMNS.in_words(COMPLETED, 200) == [
        "✓  7/12 run  3 lr=0.1  net=a      · test_accuracy 0.7500 · loss nan    · from epoch 4 · 1 min 23 s"
    ]
    assert COLUMNS.in_words(failed(Status.DIVERGED, "loss became nan"), 200) == [
        "✗  8/12 run 10 lr=0.01 net=resnet · diverged · loss became nan ·  2.04 s"
    ]
    assert COLUMNS.in_words(failed(Status.DIVERGED, "loss became nan"), 60) == [
        "✗  8/12 run 10 lr=0.01 net=resnet · diverged ·  2.04 s", "    loss became nan",
    ]  # fmt: skip


def test_rows_of_all_kinds_are_aligned():
    lines = rows(
        COMPLETED,
        failed(Status.DIVERGED, "loss became nan"),
        failed(Status.PRUNED, ""),
        failed(Status.OUT_OF_MEMORY, "17 GiB more are needed than there are, so that this is long"),
        width=84,
    )

    assert lines == [
        "         run    lr  net     epoch  run duration  test_accuracy    loss",
        "✓  7/12    3   0.1  a        4/10    1 min 23 s         0.7500     nan  from epoch 4",
        "✗  8/12   10  0.01  resnet   4/10        2.04 s  diverged · loss became nan",
        "–  8/12   10  0.01  resnet   4/10        2.04 s         0.7500     nan  pruned",  # noqa: RUF001 - a dash
        "✗  8/12   10  0.01  resnet   4/10        2.04 s  out of memory",
        "    17 GiB more are needed than there are, so that this is long",
    ]


@pytest.mark.parametrize(("width", "num_lines"), [(84, 1), (72, 2)])
def test_a_cause_is_behind_its_row_where_there_is_room(width, num_lines):
    lines = rows(failed(Status.DIVERGED, "loss became nan"), width=width)[1:]

    assert len(lines) == num_lines
    assert lines[-1].endswith(" loss became nan")


@pytest.mark.parametrize(
    ("width", "end"), [(120, "  pruned epoch 1 of 9: behind 2 of 4 runs"), (84, "  pruned"), (80, "  pruned")]
)
def test_a_run_that_was_stopped_at_once_says_why_where_there_is_room(width, end):
    run = failed(Status.PRUNED, "after epoch 1 of 9: behind 2 of 4 runs", pruned_by="SuccessiveHalving()")

    lines = rows(run, width=width)[1:]

    assert len(lines) == 1
    assert lines[0].endswith(f"nan{end}")


def test_a_run_that_was_never_begun_has_no_time():
    lost = ended("1/2", 1, {"lr": 0.1}, Outcome(Status.UNAVAILABLE, "cuda:1 is lost"), None, 5.0)
    columns = RunColumns(["lr"]).holding([lost])

    assert columns.in_words(lost, 100) == ["✗ 1/2 run 1 lr=0.1 · unavailable · cuda:1 is lost"]
    assert columns.explained(lost, 100) == ["✗ 1/2    1  0.1  unavailable · cuda:1 is lost"]


def test_the_cause_of_a_run_that_was_resumed_is_said_once():
    resumed = ended(" 8/12", 3, FIRST, Outcome(Status.DIVERGED, "loss became nan"), RUNNING, 2.0)

    assert rows(resumed, width=100)[1].endswith("diverged · loss became nan · from epoch 4")
    assert len(rows(resumed, width=100)) == len(rows(resumed, width=75)) == 2


def test_a_row_says_where_a_run_was_resumed():
    assert rows(COMPLETED, width=100)[1].endswith("nan  from epoch 4")
    assert rows(COMPLETED, width=80)[1].endswith("nan  from 4")


def test_the_last_value_stays_beside_the_one_of_the_kept_weights():
    names = ["kept test_accuracy", "test_accuracy", "loss"]
    row = Row(
        "✓  1/24", "1", {"lr": 0.001, "width": 16, "optimizer": "adam", "seed": 1}, "", "4/4", "0.457 s",
        dict.fromkeys(names, 0.75),
    )  # fmt: skip
    columns = RunColumns(list(row.params), names).holding([row])

    headings, (line,), hidden = columns.lines([row], 80)

    assert line.split()[-2:] == ["0.7500", "0.7500"]
    assert (headings[-1].split()[-2:], hidden) == (["accuracy", "accuracy"], [])


def test_a_hyperparameter_called_like_a_metric_has_a_column_of_its_own():
    row = Row("✓ 1/1", "1", {"loss": "mse", "epoch": 3}, metrics={"loss": 0.5})
    headings, lines, _ = RunColumns(["loss", "epoch"], ["loss"]).holding([row]).lines([row], 120)

    assert headings[-1].count("(hyperparameter)") == 2
    assert lines[0].split() == ["✓", "1/1", "1", "mse", "3", "0.5000"]


def test_what_has_room_for_a_long_value_keeps_it():
    narrow, wide = (Row("…", "1", {"lr": lr, "net": "a"}, metrics=METRICS) for lr in (0.1, 0.12345))
    columns = COLUMNS.holding([wide]).holding([narrow])

    assert columns.lines([wide], 80)[0] == columns.lines([narrow], 80)[0]


def test_hyperparameters_without_room_are_named():
    columns = RunColumns(["lr", "schedule", "seed"], ["accuracy"]).holding(
        [Row("✓ 1/2", "1", {"lr": 0.1, "schedule": "cosine_with_warmup", "seed": 1}, metrics={"accuracy": 0.5})]
    )
    row = Row("✓ 1/2", "1", {"lr": 0.1, "schedule": "cosine_with_warmup", "seed": 1}, metrics={"accuracy": 0.5})

    wide, narrow = (columns.lines([row], width) for width in (80, 50))

    assert "cosine_with_warmup" in wide[1][0]
    assert (wide[2], narrow[2]) == ([], ["schedule", "seed"])


@pytest.mark.parametrize(
    ("seconds", "time"), [(0.3, "0.300 s"), (0.0005, "0.000500 s"), (9.862, "9.86 s"), (59.97, "1 min")]
)
def test_a_duration_has_three_digits_as_in_the_table_of_the_panel(seconds, time):
    assert ended("1/2", 3, FIRST, Outcome(Status.COMPLETED), RUNNING, seconds).time == time


def test_a_metric_has_the_digits_of_the_table_of_the_panel():
    row = Row(metrics={"accuracy": 0.948, "latency": 1.28067})

    _, (line,), _ = RunColumns([], list(row.metrics)).holding([row]).lines([row], 80)

    assert line.split() == ["0.9480", "1.281"]
