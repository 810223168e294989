import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager.core import journal
from runmanager.core.experiment import Experiment
from runmanager.core.journal import Journal, to_line
from runmanager.core.outcome import EpochRecord
from runmanager.core.step_log import block_line
from runmanager.tables import steps
from runmanager.tables.steps import read_steps

BLOCK = {"type": "steps", "epoch": 1, "metrics": {"score": [[1, 2], [0.5, 0.25]]}}
NUMBERS = st.dictionaries(st.integers(1, 2**53), st.floats(), min_size=1, max_size=20)


@pytest.fixture
def run(tmp_path):
    return Experiment(tmp_path / "exp").open({"lr": 0.1})


def begin(run, attempt=1, epochs=(), **facts):
    log = Journal(run.path, attempt, {"after": 0, **facts})
    for number in epochs:
        log.epoch(EpochRecord(number, {"loss": 0.5}))
    log.close()


def write(run, *lines, attempt=1):
    content = b"".join(line if isinstance(line, bytes) else to_line(line) for line in lines)
    (run.path / f"attempt-{attempt}.steps.jsonl").write_bytes(content)


def table(run, damaged=None):
    values: dict[str, dict[tuple[int, int], float]] = {}
    for epoch, blocks in read_steps(run, [] if damaged is None else damaged).items():
        for name, numbers, of_block in blocks:
            spots = [(epoch, number) for number in numbers]
            values.setdefault(name, {}).update(zip(spots, map(float, of_block), strict=True))
    return {
        name: [(*spot, value) for spot, value in sorted(of_name.items())] for name, of_name in values.items()
    }


@given(NUMBERS)
def test_a_block_is_read_back_as_it_was_written(tmp_path_factory, values):
    run = Experiment(tmp_path_factory.mktemp("root") / "exp").open({"lr": 0.1})
    begin(run)
    ordered = dict(sorted(values.items()))

    write(run, block_line(1, 3, {"score": (list(ordered), list(ordered.values()))}))

    assert str(table(run)) == str({"score": [(3, step, float(value)) for step, value in ordered.items()]})


def test_blocks_are_strict_json_with_a_checksum(run):
    begin(run)
    blocks = {"score": ([50], [math.nan]), "rate": ([50, 100], [math.inf, 0.5])}, {"score": ([150], [0.5])}
    write(run, *(block_line(1, epoch, block) for epoch, block in enumerate(blocks, 1)))

    first, second = (run.path / "attempt-1.steps.jsonl").read_text().splitlines()
    assert json.loads(first)["metrics"] == {"score": [[50], ["nan"]], "rate": [[50, 100], ["inf", 0.5]]}
    assert json.loads(second).keys() == {"v", "type", "attempt", "epoch", "metrics", "t_wall", "crc"}


def test_a_file_without_its_last_line_end_is_read_without_that_line(run):
    begin(run)
    write(run, BLOCK, to_line({**BLOCK, "epoch": 2})[:-1])
    damaged: list[str] = []

    assert table(run, damaged) == {"score": [(1, 1, 0.5), (1, 2, 0.25)]}
    assert damaged == []


@pytest.mark.parametrize(
    "metrics",
    [
        {"score": [[1, 2], [0.5]]},
        {"score": [[0], [0.5]]}, {"score": [[-1], [0.5]]}, {"score": [[2**53 + 1], [0.5]]},
        {"score": [[], []]}, {"score": [[1.5], [0.5]]}, {"score": [[1], ["NaN"]]}, {"score": [[1], [None]]},
        {"score": [[1], [True]]}, {"score": [[1], [10**400]]}, {"score": [[True], [0.5]]},
        {"score": [[1], [0.5], [1]]}, {"score": 1}, [], None,
        {"run": [[1], [0.5]]}, {"step": [[1], [0.5]]}, {"epoch": [[1], [0.5]]}, {"experiment": [[1], [0.5]]},
        {"a b": [[1], [0.5]]}, {"": [[1], [0.5]]}, {"\ud800": [[1], [0.5]]}, {"\x1b[2J": [[1], [0.5]]},
    ],
)  # fmt: skip
def test_a_line_that_nobody_of_us_wrote_costs_itself(run, metrics):
    begin(run)
    write(run, {**BLOCK, "epoch": 2, "metrics": metrics}, BLOCK)
    damaged: list[str] = []

    assert table(run, damaged) == {"score": [(1, 1, 0.5), (1, 2, 0.25)]}
    assert damaged == [f"{run.path}/attempt-1.steps.jsonl (line 1)"]


@pytest.mark.parametrize(
    "line",
    [
        *[{**BLOCK, "epoch": epoch} for epoch in (0, -1, 2**53 + 1, 1.5, "1", None)],
        {**BLOCK, "type": "epoch"}, {"type": "steps"}, b"\n", b"{}\n", b"\xff\0\n", b"[" * 100_000 + b"\n",
        to_line(BLOCK).replace(b"0.5", b"0.6"),
    ],
)  # fmt: skip
def test_so_does_any_other_line(run, line):
    begin(run)
    write(run, line, BLOCK)
    damaged: list[str] = []

    assert table(run, damaged) == {"score": [(1, 1, 0.5), (1, 2, 0.25)]}
    assert damaged == [f"{run.path}/attempt-1.steps.jsonl (line 1)"]


def test_a_line_that_is_too_long_ends_the_reading(run, monkeypatch):
    monkeypatch.setattr(journal, "PIECE", 300)
    begin(run)
    block = {**BLOCK, "epoch": 2, "metrics": {"score": [list(range(1, 400)), [0.5] * 399]}}
    write(run, BLOCK, BLOCK | {"metrics": {"score": [[3], [0.1]]}}, block, BLOCK)
    damaged: list[str] = []

    assert table(run, damaged) == {"score": [(1, 1, 0.5), (1, 2, 0.25), (1, 3, 0.1)]}
    assert damaged == [f"{run.path}/attempt-1.steps.jsonl (line 3)"]


def test_lines_are_put_together_where_reading_was_cut(run, monkeypatch):
    monkeypatch.setattr(journal, "PIECE", 200)
    begin(run)
    blocks = [{**BLOCK, "metrics": {"score": [[step], [step / 4]]}} for step in range(1, 30)]
    write(run, *blocks)

    assert table(run) == {"score": [(1, step, step / 4) for step in range(1, 30)]}


def test_links_folders_and_unreadable_files_are_named(run, tmp_path):
    for attempt, epochs in ((1, [1]), (2, [2]), (3, [3])):
        begin(run, attempt, epochs, after=attempt - 1)
    (tmp_path / "secret").write_bytes(to_line(BLOCK))
    (run.path / "attempt-1.steps.jsonl").symlink_to(tmp_path / "secret")
    (run.path / "attempt-2.steps.jsonl").mkdir()
    write(run, {**BLOCK, "epoch": 3}, attempt=3)
    damaged: list[str] = []

    assert table(run, damaged) == {"score": [(3, 1, 0.5), (3, 2, 0.25)]}
    assert [text.rpartition("/")[2] for text in damaged] == [
        "attempt-1.steps.jsonl (a link, which is not followed)",
        "attempt-2.steps.jsonl (not a file)",
    ]


def test_an_attempt_supersedes_the_steps_after_the_epoch_that_it_resumes(run):
    for attempt, epochs, after, logged in (
        (1, [1, 2], 0, [1, 2, 3]), (2, [], 2, [3]), (3, [3], 2, [3, 4]), (4, [], 3, [4]),
    ):  # fmt: skip
        begin(run, attempt, epochs, after=after, boot="another")
        content = [{**BLOCK, "epoch": n, "metrics": {"score": [[n], [attempt]]}} for n in logged]
        write(run, *content, attempt=attempt)

    assert table(run) == {"score": [(1, 1, 1), (2, 2, 1), (3, 3, 3), (4, 4, 3)]}


def test_where_a_first_line_is_damaged_the_blocks_say_what_they_supersede(run):
    begin(run, 1, [1, 2])
    write(run, *({**BLOCK, "epoch": n} for n in (1, 2, 3)))
    begin(run, 2, [3], after=2)
    path = run.path / "attempt-2.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"after":2', b'"after":9'))
    write(run, {**BLOCK, "epoch": 3, "metrics": {"score": [[9], [9]]}}, attempt=2)

    assert table(run)["score"][4:] == [(3, 9, 9)]


def test_a_run_without_steps_is_not_read_at_all(run, monkeypatch):
    begin(run)
    monkeypatch.delattr(steps, "read_attempts")

    assert read_steps(run, []) == {}
