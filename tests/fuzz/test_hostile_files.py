"""Readers and searches on roots in which somebody has put hostile files with valid checksums."""

import contextlib
import io
import json
import random
import re
import resource
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runmanager import (
    InvalidArgumentError,
    OptunaSearch,
    RunManager,
    RunsWarning,
    Uniform,
    best,
    compare,
    effects,
    from_tensorboard,
    load_results,
    load_runs,
    load_steps,
    load_table,
    run_grid,
    show,
    verdict,
    write_report,
)
from tests.border.screens import command
from tests.fuzz import hostile
from tests.nightly import of_night, of_night_but

GOOD = "good"
MIXED = "mixed"
METRICS = ["loss", "accuracy", "test_accuracy", "epoch duration", "run duration", "step", "step_loss", "step_n"]
NUM_GOOD, NUM_TEMPLATES = 3, 2
FILES = {  # in a run's folder, and how often each is chosen
    "journal": 5, "steps": 4, "run.json": 5, "events": 5, "error.log": 1, "link": 2, "folder": 1,
}  # fmt: skip
BATCH = 50
NUM_COMPARED = 4  # pairs of experiments or runs in a batch
MOST_MEMORY = 4 << 30  # bytes that readers may ask for


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Two experiments: one of good runs, another of good ones and of those that are damaged in a copy of it."""
    root = tmp_path_factory.mktemp("template")
    for experiment, number in ((GOOD, NUM_GOOD), (MIXED, NUM_GOOD + NUM_TEMPLATES)):
        manager = RunManager(experiment, root, display=False)
        for index in range(number):
            with contextlib.suppress(ZeroDivisionError):
                train(
                    manager, {"lr": 0.1 / (index + 1), "seed": index, "device": "cpu"}, is_good=index < NUM_GOOD
                )
    return root


def train(manager: RunManager, params: dict[str, Any], *, is_good: bool) -> None:
    with manager.run(params):
        for epoch in manager.epochs(3):
            manager.track_loss(1 / epoch + params["lr"], 2)
            manager.track(test_accuracy=epoch / 4 - params["lr"], n=2)
            for number in range(3):
                manager.log({"step_loss": params["lr"] + number, "step_n": number})
            if not is_good and epoch == 3 and params["seed"] == NUM_GOOD:
                raise ZeroDivisionError


@pytest.fixture(scope="module")
def expected(template):
    """What the readers say of the good runs when nothing is damaged."""
    return rows_of(load_results(template)), rows_of(load_runs(template)), rows_of(from_tensorboard(template))


def rows_of(table: Any) -> dict[str, list[str]]:
    """Return the rows of the good runs, as text: experiment and run -> epoch by epoch."""
    rows: dict[str, list[str]] = {}
    metrics = [name for name in (*METRICS, "status", "epochs", "epoch", "lr", "seed") if name in table]
    for row in table.to_dict(orient="records"):
        experiment, _, run = str(row["run"]).rpartition("/")
        experiment = experiment or str(row["experiment"])
        match = re.fullmatch("([0-9]+)(-lr=.*)?", run)
        number = int(match[1]) if match else 0
        if experiment in (GOOD, MIXED) and 1 <= number <= NUM_GOOD:
            texts = {name: str(float(v) if isinstance(v := row[name], int) else v) for name in metrics}
            there = {name: text for name, text in texts.items() if text not in ("nan", "None", "<NA>")}
            rows.setdefault(f"{experiment} {number}", []).append(str(there))
    return rows


def check_rows(rows: dict[str, list[str]], wanted: dict[str, list[str]]) -> None:
    differing = {name: (rows.get(name), wanted[name]) for name in wanted if rows.get(name) != wanted[name]}
    assert not differing, differing


def make_batch(template: Path, root: Path, seed: int, size: int) -> None:
    """Copy the template, and add runs with a hostile file each: so many files are hostile."""
    dice = random.Random(seed)  # noqa: S311 - reproducible damage
    shutil.copytree(template, root)
    models = sorted((template / MIXED).glob("[0-9]*"))[NUM_GOOD:]
    for folder in sorted((root / MIXED).glob("[0-9]*"))[NUM_GOOD:]:
        shutil.rmtree(folder)
    num_bad = size // 50  # experiments
    for index in range(size - num_bad - 4):  # there are four files beside
        number = NUM_GOOD + 1 + index
        model = dice.choice(models)
        name = f"{number:03d}-{model.name.partition('-')[2]}"
        folder = root / MIXED / name
        shutil.copytree(model, folder)
        document = json.loads((folder / "run.json").read_bytes())
        document |= {"number": number, "folder": name, "id": f"{number:016x}"}
        document["crc"] = hostile.entry_checksum(document)
        (folder / "run.json").write_text(json.dumps(document))
        damage(folder, document, dice)
    damage_experiments(root, template, num_bad, dice)


def damage(folder: Path, document: dict[str, Any], dice: random.Random) -> None:
    journal, events = folder / "attempt-1.jsonl", next(folder.glob("events*"))
    match dice.choices(list(FILES), list(FILES.values()))[0]:
        case "journal":
            lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
            journal.write_bytes(hostile.journal(lines, dice))
        case "steps":
            path = folder / "attempt-1.steps.jsonl"
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            path.write_bytes(hostile.journal(lines, dice))
        case "run.json":
            (folder / "run.json").write_bytes(hostile.described(document, dice))
        case "events":
            content = hostile.events(events.read_bytes(), dice)
            events.write_bytes(hostile.sparse_header(content) if dice.random() < 0.1 else content)
        case "error.log":
            (folder / "error.log").write_bytes(hostile.ESCAPES.encode() + dice.randbytes(200) + b"\n" * 30)
        case "link":
            (folder / "error.log").touch()
            names = ("attempt-1.steps.jsonl", "run.json", "error.log")
            hostile.link(dice.choice([journal, events, *(folder / name for name in names)]), dice)
        case "folder":
            number = dice.choice(["9" * 20, "0" * 150 + "99999", "٣٣٣", "1e999"])
            folder.rename(folder.with_name(f"{number}-of={folder.name[:3]}"))


def damage_experiments(root: Path, template: Path, number: int, dice: random.Random) -> None:
    """Make files of experiments hostile; the runs of MIXED have their run.json too."""
    grid: Any = {
        "v": 1,
        "runs": [json.loads(path.read_bytes()) for path in (template / GOOD).glob("*/run.json")],
    }
    for run, path in zip(grid["runs"], (template / GOOD).glob("*/run.json"), strict=True):
        run["folder"] = path.parent.name
    hparams = {"v": 1, "kinds": {"lr": "number"}, "grouped_by": None, "repeats": ["seed"], "is_settled": True}
    for index in range(number):
        folder = root / (f"bad{index}" + dice.choice(["", "", hostile.ESCAPES, "\udcff", " ", "'"]))
        folder.mkdir()
        grid |= hostile.design(dice)
        (folder / "grid.json").write_bytes(hostile.described(grid, dice))
    (root / MIXED / "grid.json").write_text(json.dumps({"v": 1, "runs": [], **hostile.design(dice)}))
    (root / MIXED / "hparams.json").write_text(json.dumps(hostile.change(hparams, dice)))
    (root / MIXED / "holder.json").write_text(
        json.dumps(hostile.change({"host": "elsewhere", "pid": 1, "nonce": "a"}, dice))
    )


def quietly(call: Any, *arguments: Any, **options: Any) -> Any:
    """Call a reader, which may say once what is damaged."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*arguments, **options)
    assert [w.category for w in caught] in ([], [RunsWarning]), [str(w.message) for w in caught]
    assert not any(has_escapes(str(w.message)) for w in caught)
    return result


def has_escapes(text: str) -> bool:
    """Whether text could steer a terminal."""
    return any(not c.isprintable() and c != "\n" for c in text)


def run_command(*arguments: Any) -> str:
    """Call a command, which may refuse in a sentence but never fail; return its standard output."""
    answer = command(*arguments)
    assert answer.code in (0, 1, 2), (arguments, answer.err)
    assert not has_escapes(answer.out + answer.err), (arguments, ascii(answer.out + answer.err))
    assert "Traceback" not in answer.err, (arguments, answer.err)
    assert "root:x:0:0" not in answer.out
    return str(answer.out)


def check_readers(root: Path, template: Path, expected: tuple[Any, Any, Any], dice: random.Random) -> None:
    """Call every reader; none may fail or lose a row of a good run."""
    results, runs, events = expected
    loaded = quietly(load_runs, root)
    several = [root / GOOD, root / MIXED, *sorted(root.glob("bad*"))]
    for table, rows in (
        (quietly(load_results, root), results), (quietly(load_results, several), results), (loaded, runs),
        (quietly(load_runs, several), runs), (quietly(from_tensorboard, root), events),
    ):  # fmt: skip
        check_rows(rows_of(table), rows)
    check_rows(rows_of(quietly(load_steps, root)), rows_of(load_steps(template)))
    of_mixed = [folder for folder in sorted((root / MIXED).glob("[0-9]*")) if folder.is_dir()]
    check_tables(loaded, dice)
    for folders in ([template / GOOD, *several], dice.sample(of_mixed, 8)):
        check_tables(quietly(load_runs, folders), dice, num_options=1)  # nearly the same rows
    check_pages(root)
    check_commands(root, results, runs, dice)


def check_pages(root: Path) -> None:
    """Write an index, the page of each experiment, and a page of all; they show the intact runs."""
    index = root / "index.html"
    run_command("report", root)
    assert not index.exists() or not has_escapes(index.read_text("utf-8"))
    quietly(write_report, [root / GOOD, root / MIXED], root / "loss.html", "loss")
    with contextlib.suppress(InvalidArgumentError):  # nobody has the metric of the goal
        quietly(write_report, root / MIXED, root / "mixed.html")
    for written in filter(Path.exists, (root / MIXED / "report.html", root / "loss.html", root / "mixed.html")):
        content = written.read_text("utf-8")
        assert not has_escapes(content)
        assert "root:x:0:0" not in content
        assert all(f"run {number}" in content for number in range(1, NUM_GOOD + 1))


def check_tables(loaded: Any, dice: random.Random, num_options: int = 2) -> None:
    """Look at a table in every way; what a hostile goal leaves without an answer is refused in a sentence."""
    axes = [name for name in ("experiment", "device", "seed") if name in loaded]
    each: list[dict[str, Any]] = [
        {}, {"goal": "loss"}, {"goal": "loss", "repeats": "seed"}, {"goal": "loss", "repeats": ()},
    ]  # fmt: skip
    for options in dice.sample(each, num_options):
        with contextlib.nullcontext() if options else contextlib.suppress(InvalidArgumentError):
            for view in (loaded, loaded.head(1)):
                check_view(show(view, n=3, **options))
            assert not has_escapes(verdict(loaded, **options).sentence)
            assert len(best(loaded, **options)) <= len(loaded)
            value = {"goal": options["goal"]} if options else {}
            check_view(show(effects(loaded, **value)))
            for axis in axes:
                check_view(show(compare(loaded, axis, **value)))


def check_view(view: Any) -> None:
    """Make sure that what a terminal and a notebook get steers neither."""
    assert not has_escapes(repr(view))
    assert "<script>" not in view._repr_html_()


def check_commands(root: Path, results: Any, runs: Any, dice: random.Random) -> None:
    numbers = {(run["experiment"], run["run"]) for run in json.loads(run_command("list", root, "--json"))}
    assert {(name, number) for name in (GOOD, MIXED) for number in range(1, NUM_GOOD + 1)} <= numbers
    for folder in (root, root / MIXED):
        options = dice.choice(
            [[], ["--goal", "loss"], ["--goal", "loss", "--repeats", "seed"], ["--goal", "loss", "--json"]]
        )
        run_command("best", folder, "-n", 99, *options)
    run_command("list", dice.choice([root, root / MIXED]))
    run_command("compare", "device", dice.choice([root, root / MIXED]))
    files = ("--csv", root / "t.csv", "--json", root / "t.json", "--parquet", root / "p.parquet")
    run_command("export", root / MIXED, *files)
    folders = [folder for folder in sorted((root / MIXED).glob("[0-9]*")) if folder.is_dir()]
    several = [root / GOOD, root / MIXED, *sorted(root.glob("bad*"))]
    for _ in range(NUM_COMPARED):
        sides = dice.sample([*several, *dice.sample(folders, 2)], 2)
        run_command("diff", *sides, *dice.choice([[], ["--json"]]))
        value = dice.choice([[], ["--goal", "min:loss"]])
        run_command("compare", "experiment", *sides, *value, *dice.choice([[], ["--json"]]))
    epochs, wanted = dice.choice([([], runs), (["--epochs"], results)])
    run_command("export", root, *epochs, *files)
    for file in ("t.csv", "t.json", "p.parquet"):
        check_rows(rows_of(load_table(root / file)), wanted)
    for folder in dice.sample(folders, BATCH // 2):
        run_command("show", folder)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Refuse memory that is out of proportion to the files, which are small."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("seed", of_night_but(range(1, 61), [1]))
def test_no_reader_fails_or_loses_a_row_of_another_run(template, expected, tmp_path, seed):
    root, limit = tmp_path / f"root{seed}", sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(20_000)  # values are nested deep
        make_batch(template, root, seed, BATCH)
        sys.setrecursionlimit(limit)
        with contextlib.redirect_stdout(io.StringIO()), limited_memory():
            check_readers(root, template, expected, random.Random(seed))  # noqa: S311 - reproducible
    finally:
        sys.setrecursionlimit(limit)


# Searches that go on from trials that somebody has changed

NUM_BEFORE, NUM_AFTER = 4, 6


def train_searched(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(reward=run.hostile_lr * run.hostile_w, n=1)


def search(root, number):
    return run_grid(
        {"hostile_lr": Uniform(0, 1), "hostile_w": [1, 2]}, train_searched, experiment="e", root=root,
        search=OptunaSearch(n=number, seed=0), goal="max:reward", tensorboard=False, display=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """An experiment with the runs that a search has made."""
    root = tmp_path_factory.mktemp("template")
    search(root, NUM_BEFORE)
    for path in sorted((root / "e").glob("*/run.json"))[::2]:
        content = json.loads(path.read_bytes())
        content["trials"][0]["attributes"] = {"generation": 1, "cma:optimizer:0": "80", "space": {"x": [1, 2]}}
        path.write_text(json.dumps(content))
    return root


@pytest.mark.slow
def test_changed_trials_cost_no_run_and_stop_no_search(searched, tmp_path):
    for seed in range(of_night(100, by_day=2)):
        root = tmp_path / str(seed)
        shutil.copytree(searched, root)
        dice = random.Random(seed)  # noqa: S311 - reproducible damage
        for path in (root / "e").glob("*/run.json"):
            content = json.loads(path.read_bytes())
            of_search = {"trials": content.pop("trials")} if "trials" in content else {}
            with contextlib.suppress(RecursionError):  # this test's own
                path.write_text(json.dumps(content | hostile.change(of_search, dice)))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunsWarning)
            runs = search(root, NUM_AFTER).runs

        assert runs["status"].eq("completed").all(), seed
        assert runs["run"].tolist() == list(range(1, len(runs) + 1)), seed
        assert len(runs) >= NUM_AFTER, seed
        shutil.rmtree(root)
