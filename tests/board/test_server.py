import csv
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import pytest

from runmanager import RunManager, load_results, run_grid
from runmanager.errors import RunsWarning
from runmanager.tensorboard import pictures
from runmanager.tensorboard.hparams import OF_GOAL, tag
from tests.board.reading import LOADER, event_files, make_network, train
from tests.damaging import as_if_killed, flip

GRID: dict[str, list[Any]] = {
    "lr": [0.1, 0.01],
    "amp": [True, False],
    "schedule": [None],
    "layers": [(3, 4)],
    "device": ["cpu"],
}
TRAINED = [f"grid/{n:03}-lr={lr}-amp={amp}" for n, (lr, amp) in enumerate(
    [(0.1, True), (0.1, False), (0.01, True), (0.01, False)], 1
)]  # fmt: skip
FAILED = "broken/001"
STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
ALL = {"allowedStatuses": STATUSES, "colParams": [], "startIndex": 0, "sliceSize": 1_000_000}
START_S, LOAD_S = 60, 120
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class Server:
    """A running TensorBoard."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **query: str) -> bytes:
        return self._request("GET", f"/data/{path}?{urlencode(query)}")

    def json(self, path: str, **query: str) -> Any:
        return json.loads(self.get(path, **query))

    def hparams(self, path: str, **body: Any) -> Any:
        return json.loads(self.raw_hparams(path, **body), parse_constant=pytest.fail)

    def raw_hparams(self, path: str, **body: Any) -> bytes:
        content = json.dumps({"experimentName": "", **body})
        return self._request("POST", f"/data/plugin/hparams/{path}", content)

    def sessions(self) -> dict[str, Any]:
        """Return the session of each Trial ID."""
        answer = self.hparams("session_groups", **ALL)
        return {group["name"]: group for group in answer.get("sessionGroups", [])}

    def form(self, path: str, *fields: tuple[str, str]) -> Any:
        """Return the answer to a form that is sent."""
        return json.loads(self._request("POST", f"/data/{path}", urlencode(fields), FORM))

    def _request(self, method: str, path: str, content: str | None = None, kind: str = JSON) -> bytes:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            connection.request(method, path, content, {"Content-Type": kind})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        assert answer.status == http.HTTPStatus.OK, body
        return body


def train_two_epochs(run: Any, manager: RunManager) -> None:
    train(manager, run, num_epochs=2)


def fail_in_the_second_epoch(run: Any, manager: RunManager) -> None:
    def fail(epoch: int) -> None:
        if epoch == 2:
            raise ValueError("out of <memory>")

    train(manager, run, num_epochs=2, at_end=fail)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """Make four completed runs, one that failed and one that could not be executed here."""
    root = tmp_path_factory.mktemp("runs")
    run_grid(GRID, train_two_epochs, experiment="grid", root=root, display=False, executor="inline")
    one = {name: values[:1] for name, values in GRID.items()}
    run_grid(one, fail_in_the_second_epoch, experiment="broken", root=root, display=False, executor="inline")
    elsewhere: dict[str, list[Any]] = {"lr": [1], "device": ["cuda:99"]}
    run_grid(elsewhere, train_two_epochs, experiment="elsewhere", root=root, display=False, executor="inline")
    return root


@pytest.fixture(
    scope="module", params=["true", pytest.param("false", marks=pytest.mark.slow)], ids=["fast", "python"]
)
def server(request, logdir, tmp_path_factory):
    """Start TensorBoard with one of its two loaders, and wait until it has read all runs."""
    if request.param == "true":
        pytest.importorskip("tensorboard_data_server")
    yield from serve(logdir, request.param, tmp_path_factory.mktemp("tensorboard"), num_sessions=5)


def serve(
    logdir: Path, load_fast: str, own: Path, num_sessions: int, num_unknown: int = 0, every_s: float = 0.1
) -> Iterator[Server]:
    """Start TensorBoard and ask it until it has so many sessions, of which so many have no end."""
    options = ["--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0", "--load_fast", load_fast]
    with (own / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *options],
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(own)},  # where it leaves a note of itself
            start_new_session=True,
        )
    try:
        server = Server(address_in(own / "log", process))
        deadline = time.monotonic() + LOAD_S
        while not is_loaded(server, num_sessions, num_unknown):
            assert time.monotonic() < deadline, server.get("runs")
            time.sleep(every_s)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with the data server, its child
        process.wait()


def address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while True:
        match = re.search(r"at (http://\S+)", log.read_text())
        if match:
            return urlsplit(match[1]).netloc
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def is_loaded(server: Server, num_sessions: int, num_unknown: int) -> bool:
    sessions = [session for group in server.sessions().values() for session in group["sessions"]]
    unknown = [session for session in sessions if session["status"] == "STATUS_UNKNOWN"]
    return len(sessions) == num_sessions and len(unknown) == num_unknown


@pytest.mark.slow
def test_the_runs_are_those_that_were_trained(server):
    assert sorted(server.json("runs")) == [FAILED, *TRAINED]


@pytest.mark.slow(everywhere=True)
def test_every_page_that_is_written_for_has_data(server):
    listing = server.json("plugins_listing")

    written = {"scalars", "hparams", "images", "histograms", "text", "custom_scalars", "graphs", "timeseries"}
    assert {name for name in written if not listing[name]["enabled"]} == set()


def test_every_run_has_the_specified_scalars(server):
    names = {run: sorted(tags) for run, tags in server.json("plugin/scalars/tags").items()}

    expected = [
        "Goal/best max:test_accuracy", "Goal/best_after_s", "Goal/best_epoch", "Goal/epoch_s", "Goal/last",
        "accuracy/test", "accuracy/train", "loss/test", "loss/train", "time/epoch_s",
        "time/phase_data_s", "time/phase_eval_s", "time/phase_train_s", "time/run_s",
        "time/throughput_images_per_s", "train/grad_norm",
    ]  # fmt: skip
    assert names == dict.fromkeys([FAILED, *TRAINED], expected)


@pytest.mark.parametrize("column", ["loss", "accuracy", "test_loss", "epoch duration", "run duration"])
def test_scalars_equal_the_table(server, logdir, column):
    table = load_results(logdir / "grid")

    shown = [server.json("plugin/scalars/scalars", run=run, tag=tag(column)) for run in TRAINED]

    assert [[step for _, step, _ in series] for series in shown] == [[1, 2]] * 4
    values = [value for series in shown for _, _, value in series]
    assert values == table[column].astype("float32").astype("float64").tolist()


def test_the_runs_of_a_grid_can_be_asked_for_at_once(server, logdir):
    table = load_results(logdir / "grid").query("epoch == 2")

    shown = server.form(
        "plugin/scalars/scalars_multirun", ("tag", "loss/test"), *(("runs", run) for run in TRAINED)
    )

    assert [shown[run][-1][2] for run in TRAINED] == table["test_loss"].astype("float32").tolist()


def test_scalars_can_be_had_as_csv(server):
    content = server.get("plugin/scalars/scalars", run=TRAINED[0], tag="loss/train", format="csv").decode()

    head, *rows = csv.reader(content.splitlines())
    assert head == ["Wall time", "Step", "Value"]
    assert [row[1] for row in rows] == ["1", "2"]


def test_a_failed_run_keeps_the_epochs_it_completed(server, logdir):
    (row,) = load_results(logdir / "broken").to_dict("records")

    series = server.json("plugin/scalars/scalars", run=FAILED, tag="loss/train")

    assert [(step, value) for _, step, value in series] == [(1, float(np.float32(row["loss"])))]


def test_every_run_is_a_session_with_typed_hyperparameters_and_without_those_that_all_runs_share(server):
    sessions = server.sessions()

    fixed = {"schedule": "none", "layers": "(3, 4)", "device": "cpu"}
    expected = {
        f"grid/{number:03}": {"lr": lr, "amp": amp}
        for number, (lr, amp) in enumerate([(0.1, True), (0.1, False), (0.01, True), (0.01, False)], 1)
    }
    shown = {name: session["hparams"] for name, session in sessions.items()}
    assert shown == {**expected, "broken/001": {"lr": 0.1, "amp": True, **fixed}}
    assert {type(hparams["amp"]) for hparams in shown.values()} == {bool}


def test_a_session_tells_how_its_run_ended(server):
    statuses = {name: group["sessions"][0]["status"] for name, group in server.sessions().items()}

    assert statuses == {
        **{f"grid/{number:03}": "STATUS_SUCCESS" for number in range(1, 5)},
        "broken/001": "STATUS_FAILURE",
    }


def test_the_metrics_of_a_session_are_those_of_the_last_epoch(server, logdir):
    last = load_results(logdir / "grid").query("epoch == 2")

    sessions = server.sessions()

    for run, loss in zip(last["run"], last["test_loss"], strict=True):
        metrics = {m["name"]["tag"]: m for m in sessions[f"grid/{run:03}"]["metricValues"]}
        shown = metrics["loss/test"]
        assert (shown["trainingStep"], shown["value"]) == (2, float(np.float32(loss)))


def test_the_hyperparameters_have_types_and_tell_which_vary(server):
    infos = {info["name"]: info for info in server.hparams("experiment")["hparamInfos"]}

    assert {name: info["type"] for name, info in infos.items()} == {
        "lr": "DATA_TYPE_FLOAT64",
        "amp": "DATA_TYPE_BOOL",
        "schedule": "DATA_TYPE_STRING",
        "layers": "DATA_TYPE_STRING",
        "device": "DATA_TYPE_STRING",
    }
    assert {name for name, info in infos.items() if info["differs"]} == {"lr", "amp"}


def test_the_five_metrics_that_are_shown_are_the_ones_to_decide_by(server):
    names = [info["name"]["tag"] for info in server.hparams("experiment")["metricInfos"]]

    assert names[:5] == ["Goal/best max:test_accuracy", *sorted(OF_GOAL)[1:]]


def test_histograms_have_every_step_and_count_every_value(server):
    numel = make_network()[1].weight.numel()  # type: ignore[index]
    tags = dict.fromkeys(("weights/1.weight", "weights:grad/1.weight"), numel)

    assert set(server.json("plugin/histograms/tags")[TRAINED[0]]) == set(tags)
    for name, numel in tags.items():
        shown = server.json("plugin/histograms/histograms", run=TRAINED[0], tag=name)
        assert [step for _, step, _ in shown] == [1, 2]
        assert [len(buckets) for *_, buckets in shown] == [30, 30]
        assert [sum(count for *_, count in buckets) for *_, buckets in shown] == pytest.approx([numel] * 2)


def test_the_samples_are_a_png(server):
    (image,) = server.json("plugin/images/images", run=TRAINED[0], tag="visuals/samples", sample="0")

    png = server.get("plugin/images/individualImage", **dict(parse_qsl(image["query"])))

    assert png == pictures.sheet(LOADER[0][0]).encoded_image_string
    assert image["step"] == 0


def test_the_confusion_of_a_completed_run_is_a_png(server):
    tags = server.json("plugin/images/tags")
    (image,) = server.json("plugin/images/images", run=TRAINED[0], tag="visuals/confusion_test", sample="0")

    png = server.get("plugin/images/individualImage", **dict(parse_qsl(image["query"])))

    assert png.startswith(b"\x89PNG")
    assert image["step"] == 2
    assert {run for run, names in tags.items() if "visuals/confusion_test" in names} == set(TRAINED)


def test_the_configuration_is_shown_as_a_table(server):
    (shown,) = server.json("plugin/text/text", run=TRAINED[3], tag="run/config")

    assert shown["text"].count("<table>") == 1
    rows = dict(re.findall(r"<td>(.*?)</td>\s*<td>(.*?)</td>", shown["text"]))
    expected = {"lr": "0.01", "amp": "False", "schedule": "none", "layers": "(3, 4)", "parameters": "51"}
    assert {name: rows[name] for name in expected} == expected


def test_the_error_of_a_failed_run_is_shown_as_it_is(server):
    tags = server.json("plugin/text/tags")
    (shown,) = server.json("plugin/text/text", run=FAILED, tag="run/error")

    assert {run for run, names in tags.items() if "run/error" in names} == {FAILED}
    assert "<pre><code>ValueError: out of &lt;memory&gt;" in shown["text"]
    assert "Traceback (most recent call last):" in shown["text"]
    assert ", in fail\n" in shown["text"]


@pytest.mark.slow(everywhere=True)
def test_train_and_test_are_side_by_side_and_share_a_chart(server):
    layout = server.json("plugin/custom_scalars/layout")

    drawn = {
        category["title"]: [
            sorted(server.json("plugin/custom_scalars/scalars", run=TRAINED[0], tag=pattern)["tag_to_events"])
            for chart in category["chart"]
            for pattern in chart["multiline"]["tag"]
        ]
        for category in layout["category"]
    }
    assert drawn == {
        "side by side": [
            ["Goal/best max:test_accuracy"], ["Goal/last"], ["loss/train"], ["loss/test"], ["accuracy/train"],
            ["accuracy/test"],
        ],
        "overview": [
            ["loss/test", "loss/train"], ["accuracy/test", "accuracy/train"], ["time/epoch_s"],
            ["time/phase_data_s", "time/phase_eval_s", "time/phase_train_s"],
        ],
    }  # fmt: skip


def test_the_graph_has_the_layers(server):
    info = server.json("plugin/graphs/info")
    graph = server.get("plugin/graphs/graph", run=TRAINED[0], conceptual="false").decode()

    assert {run: shown["run_graph"] for run, shown in info.items()} == dict.fromkeys([FAILED, *TRAINED], True)
    nodes = re.findall(r'^ *name: "(.*?)"\n *op: "(.*?)"', graph, re.MULTILINE)
    assert [op for _, op in nodes] == ["placeholder", "Flatten", "Linear", "output"]
    assert [name for name, _ in nodes][1:] == ["0", "1", "output"]


CONTINUED = [f"{name}/001" for name in ("anew", "before", "failed", "healed", "killed")]


class Ends:
    """Ends a run in its third epoch, once."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def __call__(self, run: Any, manager: RunManager) -> None:
        train(manager, run, num_epochs=4, at_end=self.end, checkpoint=True)

    def end(self, epoch: int) -> None:
        if epoch == 3 and self.error:
            raise self.error


def start_again(root: Path, name: str, error: BaseException, damage: Callable[[Path], None]) -> None:
    """Execute a run that ends in its third epoch, damage its folder, and execute it again."""
    options: dict[str, Any] = {"experiment": name, "root": root, "display": False, "retry_failed": True}
    options["executor"] = "inline"
    run_grid({"lr": [0.1]}, Ends(error), **options)
    damage(root / name / "001")
    with warnings.catch_warnings(action="ignore", category=RunsWarning):
        run_grid({"lr": [0.1]}, Ends(None), **options)


def kill(folder: Path) -> None:
    as_if_killed(folder)
    (path,) = event_files(folder)
    with path.open("ab") as file:
        file.write(b"\x40\0\0\0")  # a record that was being written


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """Make runs that were continued after all that can happen to them."""
    root = tmp_path_factory.mktemp("continued")

    def lose_all(folder: Path) -> None:
        flip(folder / "checkpoint.pt")
        flip(folder / "checkpoint.prev.pt")

    start_again(root, "killed", KeyboardInterrupt(), kill)
    start_again(root, "failed", ValueError("no"), lambda _: None)
    start_again(root, "before", KeyboardInterrupt(), lambda folder: flip(folder / "checkpoint.pt"))
    start_again(root, "healed", KeyboardInterrupt(), lambda folder: as_if_killed(folder, num_lost=1))
    start_again(root, "anew", KeyboardInterrupt(), lose_all)
    return root


@pytest.fixture(
    scope="module", params=["true", pytest.param("false", marks=pytest.mark.slow)], ids=["fast", "python"]
)
def continued_server(request, continued, tmp_path_factory):
    if request.param == "true":
        pytest.importorskip("tensorboard_data_server")
    yield from serve(continued, request.param, tmp_path_factory.mktemp("tensorboard"), num_sessions=5)


@pytest.mark.parametrize("run", CONTINUED)
@pytest.mark.parametrize("column", ["loss", "test_accuracy", "run duration"])
def test_a_continued_run_shows_every_epoch_once(continued_server, continued, run, column):
    table = load_results(continued / run)

    shown = continued_server.json("plugin/scalars/scalars", run=run, tag=tag(column))

    assert [step for _, step, _ in shown] == [1, 2, 3, 4]
    assert [value for *_, value in shown] == table[column].astype("float32").astype("float64").tolist()


@pytest.mark.parametrize("run", CONTINUED)
def test_a_continued_run_shows_its_pictures_once(continued_server, run):
    histograms = continued_server.json("plugin/histograms/histograms", run=run, tag="weights/1.weight")
    images = continued_server.json("plugin/images/images", run=run, tag="visuals/samples", sample="0")

    steps = [step for _, step, _ in histograms]
    # the Python loader drops what the killed attempt showed of the epoch that was healed
    assert steps in ([[1, 2, 3, 4], [1, 3, 4]] if run == "healed/001" else [[1, 2, 3, 4]])
    assert [image["step"] for image in images] == [0]


def test_a_run_that_succeeds_when_it_is_continued_is_a_success(continued_server):
    statuses = {name: group["sessions"][0]["status"] for name, group in continued_server.sessions().items()}

    assert statuses == dict.fromkeys(CONTINUED, "STATUS_SUCCESS")
    texts = continued_server.json("plugin/text/tags")
    assert [run for run, tags in texts.items() if "run/error" in tags] == []
