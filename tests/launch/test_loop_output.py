import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runmanager import RunManager
from runmanager.core.outcome import EpochRecord
from runmanager.front.loop_output import epoch_line

PARAMS = {"lr": 0.01, "batch_size": 100, "device": "cpu"}
METRICS = {
    "loss": 0.598666, "accuracy": 0.81234, "epoch duration": 1.25, "run duration": 3.0,
    "validation_loss": 0.7, "validation_accuracy": 0.75,
}  # fmt: skip


LINE = "run 2 · epoch  3/10 · loss 0.5987 · accuracy 0.8123"
LABELS = "lr=0.01 batch_size=100 device=cpu"


def line(width, *, metrics=METRICS, params=PARAMS, epoch=3, num_epochs=10):
    return epoch_line(2, params, EpochRecord(epoch, metrics), num_epochs, width)


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (155, f"{LINE} · validation_loss 0.7000 · validation_accuracy 0.7500 ·  1.25 s · {LABELS}"),
        (80, f"{LINE} · validation_loss 0.7000 · …"),
        (40, "run 2 · epoch  3/10 · loss 0.5987 · acc…"),
    ],
)
def test_metrics_come_first_where_there_is_little_room(width, words):
    assert line(width) == words


def test_a_loss_that_is_not_finite_is_shown():
    nan, inf = float("nan"), float("inf")

    assert " · loss nan    · accuracy inf    · " in line(80, metrics={**METRICS, "loss": nan, "accuracy": inf})


def test_foreign_text_cannot_steer_the_terminal():
    shown = line(200, params={"lr": "a\x1b[31m\nb"}, metrics={**METRICS, "f1\x1b]0;": 0.5})

    assert shown.endswith("lr=a\\x1b[31m\\nb")
    assert "f1\\x1b]0; 0.5000" in shown


@given(
    st.integers(40, 200),
    st.dictionaries(st.text(max_size=20), st.text(max_size=30), max_size=5),
    st.dictionaries(st.text(max_size=20).filter(lambda name: "duration" not in name), st.floats(), max_size=5),
)
def test_a_line_is_never_wider_than_the_terminal(width, params, metrics):
    shown = line(width, params=params, metrics={**metrics, "epoch duration": 1.0})

    assert cell_len(shown) <= width
    assert shown.startswith("run 2")


@pytest.mark.parametrize("options", [{}, {"display": False}], ids=["shown", "display=False"])
def test_a_terminal_shows_a_line_for_each_epoch(tmp_path, monkeypatch, capsys, options):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    manager = RunManager("exp", tmp_path, tensorboard=False, **options)

    with manager.run(PARAMS):
        for _ in manager.epochs(2):
            manager.track_loss(0.5, 1)
            manager.track(f1=0.25)

    lines = [
        line[: line.rindex("0.2500") + 6] for line in capsys.readouterr().out.splitlines() if " · " in line
    ]
    expected = [f"run 1 · epoch {epoch}/2 · loss 0.5000 · f1 0.2500" for epoch in (1, 2)]
    assert lines == ([] if options else expected)
