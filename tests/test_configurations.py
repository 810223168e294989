import copy
import pickle
import sys
from dataclasses import dataclass, field

import pytest

from runmanager import RunBuilder, expand, load_runs, run_grid
from runmanager.errors import GridError


@dataclass(frozen=True)
class Optimizer:
    name: str = "sgd"
    lr: float = 0.1

    def __post_init__(self):
        if self.lr < 0:
            raise ValueError("lr is negative")


@dataclass
class Config:
    opt: Optimizer = field(default_factory=Optimizer)
    width: int = 8
    double: int = field(init=False)

    def __post_init__(self):
        self.double = 2 * self.width


def test_a_run_comes_back_from_a_pickle_with_its_configuration():
    (run,) = expand(Config(), {"width": [4]})

    for again in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        assert (again, again.config) == (run, run.config)
        assert again.config is not run.config


def test_a_whole_data_class_can_be_the_value_of_an_axis():
    runs = expand(Config(), {"opt": [Optimizer("adam"), Optimizer("sgd")]})

    assert [run.config.opt.name for run in runs] == [run.opt.name for run in runs] == ["adam", "sgd"]
    assert runs[0]._fields == ("opt", "width", "double")


def test_a_sample_and_a_condition_choose_the_runs():
    sample = RunBuilder.sample({"width": range(1000)}, 3, seed=0)

    runs = expand(Config(), sample, where=lambda run: run.config.double > 800)

    assert [run.width for run in runs] == [run.width for run in sample if run.width > 400]
    with pytest.raises(GridError, match="where= keeps none of 3 runs"):
        expand(Config(), sample, where=lambda run: run.double < 0)


def test_a_value_is_as_the_configuration_has_taken_it():
    @dataclass
    class Converting:
        lr: float = 0.1

        def __post_init__(self):
            self.lr = float(self.lr)

    (run,) = expand(Converting(), {"lr": ["0.5"]})

    assert (run.lr, run.config.lr) == (0.5, 0.5)


def train(run, manager):
    assert isinstance(run.config, Config)
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.config.opt.lr, 1)


@pytest.mark.slow(everywhere=True)
def test_run_grid_executes_and_finds_them_by_all_values_of_the_configuration(tmp_path):
    def start(config):
        runs = expand(config, {"opt.lr": [0.5, 0.6]})
        return run_grid(runs, train, experiment="e", root=tmp_path, executor="inline", tensorboard=False)

    first, again, other = start(Config()), start(Config()), start(Config(width=4))

    assert first.exit_code == again.exit_code == other.exit_code == 0
    runs = load_runs(tmp_path)
    assert runs[["opt.lr", "width", "loss"]].to_numpy().tolist() == [
        [0.5, 8, 0.5], [0.6, 8, 0.6], [0.5, 4, 0.5], [0.6, 4, 0.6],
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "e").glob("00*"))[:2] == [
        "001-opt.lr=0.5",
        "002-opt.lr=0.6",
    ]


def test_expanding_needs_no_omegaconf():
    assert "omegaconf" not in sys.modules
