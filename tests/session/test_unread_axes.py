from functools import partial
from typing import Any

import pytest

from runmanager import expand, fit, run_grid
from runmanager.checks.changed import fingerprint
from runmanager.checks.unread_axes import unread_axes


def width_of(config):
    return config.width


def reads(run, manager, *, momentum=0.9, marker=0):
    names = ["decay"]
    with manager.run(run, manager.network):
        return run.lr, getattr(run, "batch_size", 64), names, momentum, run.opt, width_of(manager)


def fits(run, manager):
    fit(run, manager.network, [], manager, optimizer=run.optimizer, epochs=1)


def passes_on(run, manager):
    return width_of(run)


def unpacks(run, manager):
    return dict(**run._asdict())


def iterates(run, manager):
    return list(run)


def named(train, axes):
    return unread_axes(train, fingerprint(train)["source"]["text"], axes)


@pytest.mark.parametrize("train", [reads, partial(reads, marker=1)])
def test_axes_whose_names_do_not_occur_are_named(train):
    axes = ["lr", "bacth_size", "momentum", "decay", "width", "opt.beta", "other"]

    assert named(train, axes) == (
        "train never reads 'bacth_size', 'other': read run.bacth_size, or leave it out"
    )


def test_a_run_that_fit_gets_is_not_passed_on():
    assert named(fits, ["optimizer", "widht"]).startswith("train never reads 'widht'")


@pytest.mark.parametrize("train", [passes_on, unpacks, iterates, print])
def test_nothing_is_said_if_the_whole_run_is_passed_on_or_the_source_is_not_known(train):
    assert named(train, ["anything"]) == ""


def never_reads(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)


@pytest.mark.parametrize(
    "runs",
    [{"widht": [1, 2], "seed": [0, 1]}, expand({"widht": 1, "heigth": 2}, {"widht": [1, 2]})],
)
def test_a_grid_names_them_once_and_neither_the_device_nor_seeds_nor_what_is_constant(tmp_path, caplog, runs):
    options: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}

    with caplog.at_level("WARNING", "runmanager"):
        run_grid(runs, never_reads, experiment="e", root=tmp_path, **options)

    assert [record.message for record in caplog.records if "never read" in record.message] == [
        "! train never reads 'widht': read run.widht, or leave it out"
    ]
