import pytest

from runmanager import load_runs, run_grid
from runmanager.errors import GridError


def start(tmp_path, train, grid):
    return run_grid(grid, train, experiment="e", root=tmp_path, executor="inline", tensorboard=False)


def test_parameters_get_the_values_of_the_run_or_their_defaults(tmp_path):
    def train(run, manager, lr, width=8, *, num_epochs=2):
        with manager.run(run):
            for _ in manager.epochs(num_epochs):
                manager.track_loss(lr * width, 1)

    start(tmp_path, train, {"lr": [0.5], "num_epochs": [1, 3]})

    runs = load_runs(tmp_path)
    assert runs["epochs"].tolist() == [1, 3]
    assert runs["loss"].tolist() == [4.0, 4.0]


@pytest.mark.slow
def test_a_parameter_may_be_a_group_of_nested_axes(tmp_path):
    def train(run, manager, opt, width=8):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(opt.lr, 1)

    start(tmp_path, train, {"opt": {"lr": [0.5], "name": ["sgd"]}})

    assert load_runs(tmp_path)["loss"].tolist() == [0.5]


def needs_width(run, manager, lr, width):
    raise AssertionError


def takes_only_the_run(run):
    raise AssertionError


def takes_values_by_position(run, manager, lr, /):
    raise AssertionError


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (needs_width, "missing a required argument: 'width'"),
        (takes_only_the_run, "got 'takes_only_the_run': too many positional arguments"),
        (takes_values_by_position, "'lr'"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_starts(tmp_path, train, why):
    with pytest.raises(GridError, match="train must take") as caught:
        start(tmp_path, train, {"lr": [0.5]})

    assert why in str(caught.value)
    assert list(tmp_path.iterdir()) == []
