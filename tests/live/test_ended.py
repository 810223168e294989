from dataclasses import replace

import pytest

from runmanager.live.columns import AxisColumn
from runmanager.live.ended import Ended
from runmanager.outcome import Outcome, Status

AXES = [AxisColumn.of("lr", [0.1, 0.01]), AxisColumn.of("net", ["a", "resnet"])]
METRICS = {"test_accuracy": 0.75, "loss": float("nan")}
COMPLETED = Ended(" 7/12", " 3", {"lr": 0.1, "net": "a"}, Outcome(Status.COMPLETED), METRICS, 83.0)


def failed(status, error):
    return Ended(" 8/12", "10", {"lr": 0.01, "net": "resnet"}, Outcome(status, error), METRICS, 2.04)


def test_a_line_in_words_names_each_value():
    assert COMPLETED.in_words(AXES, 200) == [
        "✓  7/12 run  3 lr=0.1  net=a      · test_accuracy 0.75    · loss nan     · 1 min 23 s"
    ]
    assert failed(Status.DIVERGED, "loss became nan").in_words(AXES, 200) == [
        "✗  8/12 run 10 lr=0.01 net=resnet · diverged · loss became nan ·  2.0 s"
    ]
    assert failed(Status.DIVERGED, "loss became nan").in_words(AXES, 60) == [
        "✗  8/12 run 10 lr=0.01 net=resnet · diverged ·  2.0 s", "    loss became nan",
    ]  # fmt: skip


def test_rows_of_all_kinds_are_aligned():
    rows = [
        ended.in_row(AXES, list(METRICS), 72)
        for ended in (
            COMPLETED,
            failed(Status.DIVERGED, "loss became nan"),
            failed(Status.PRUNED, ""),
            failed(Status.OUT_OF_MEMORY, "17 GiB more are needed than there are, so that this is long"),
        )
    ]

    assert {headings for headings, _ in rows} == {"         run    lr  net     test_accuracy     loss     time"}
    assert [line for _, lines in rows for line in lines] == [
        "✓  7/12    3   0.1  a                0.75      nan     1:23",
        "✗  8/12   10  0.01  resnet  diverged                  2.0 s",
        "    loss became nan",
        "–  8/12   10  0.01  resnet           0.75      nan    2.0 s  waits",  # noqa: RUF001 - a dash
        "✗  8/12   10  0.01  resnet  out of memory             2.0 s",
        "    17 GiB more are needed than there are, so that this is long",
    ]


@pytest.mark.parametrize(("width", "num_lines"), [(80, 1), (74, 2)])
def test_a_cause_is_behind_its_row_where_there_is_room(width, num_lines):
    _, lines = failed(Status.DIVERGED, "loss became nan").in_row(AXES, list(METRICS), width)

    assert len(lines) == num_lines
    assert lines[-1].endswith("  loss became nan")


@pytest.mark.parametrize(
    ("width", "end"), [(110, "  pruned epoch 1 of 9: behind 2 of 4 runs"), (80, "  pruned"), (72, "  pruned")]
)
def test_a_run_that_was_stopped_at_once_says_why_where_there_is_room(width, end):
    run = failed(Status.PRUNED, "")
    why = "after epoch 1 of 9: behind 2 of 4 runs"
    run = replace(run, outcome=replace(run.outcome, error=why, pruned_by="SuccessiveHalving()"))

    _, lines = run.in_row(AXES, list(METRICS), width)

    assert len(lines) == 1
    assert lines[0].endswith(f"2.0 s{end}")


def test_a_run_that_was_never_begun_has_no_time():
    lost = Ended("1/2", "1", {"lr": 0.1}, Outcome(Status.UNAVAILABLE, "cuda:1 is lost"), {}, None)

    assert lost.in_words(AXES[:1], 100) == ["✗ 1/2 run 1 lr=0.1  · unavailable · cuda:1 is lost"]
    assert lost.in_row(AXES[:1], [], 100)[1] == ["✗ 1/2    1   0.1           unavailable · cuda:1 is lost"]
