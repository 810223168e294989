import copy
import pickle
import sys
from dataclasses import dataclass, field

import pytest

from runmanager import RunBuilder, expand, load_runs, run_grid
from runmanager.errors import GridError
from runmanager.run import kinds_of


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


YAML = {"opt": {"_target_": "torch.optim.SGD", "lr": 0.1}, "layers": [1, 2], "labels": {0: "cat"}}


def problems_of(config, params):
    with pytest.raises(GridError) as caught:
        expand(config, params)
    return caught.value.problems


@pytest.mark.parametrize("axes", [{"opt.lr": [0.5, 0.6]}, {"opt": {"lr": [0.5, 0.6]}}])
def test_each_run_has_its_own_configuration_with_its_values(axes):
    runs = expand(Config(), {**axes, "width": [4]})

    assert [run.config for run in runs] == [Config(Optimizer(lr=0.5), 4), Config(Optimizer(lr=0.6), 4)]
    assert repr(runs[0]) == "Run(opt.name='sgd', opt.lr=0.5, width=4, double=8)"
    assert runs[0].opt.lr == 0.5
    assert kinds_of(runs[0]) == {"opt.name": "text", "opt.lr": "number", "width": "number", "double": "number"}
    assert len({id(run.config) for run in runs}) == 2


def test_a_run_comes_back_from_a_pickle_with_its_configuration():
    (run,) = expand(Config(), {"width": [4]})

    for again in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        assert (again, again.config) == (run, run.config)
        assert again.config is not run.config


def test_other_runs_have_no_configuration():
    (run,) = RunBuilder.get_runs({"width": [4]})

    with pytest.raises(AttributeError, match=r"it has: width; runs of expand\(\) have run.config"):
        run.config  # noqa: B018


def test_a_mapping_as_of_a_yaml_file_is_a_configuration():
    first, second = expand(YAML, {("opt.lr", "layers"): [(0.5, [3]), (0.6, [4])], "device": ["cpu"]})

    assert first.config == {
        "opt": {"_target_": "torch.optim.SGD", "lr": 0.5},
        "layers": [3],
        "labels": {0: "cat"},
    }
    assert second._asdict() == {
        "opt._target_": "torch.optim.SGD", "opt.lr": 0.6, "layers": [4], "labels": {0: "cat"}, "device": "cpu",
    }  # fmt: skip
    assert YAML["layers"] == [1, 2]


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


def test_all_unknown_fields_are_named_with_those_that_were_meant():
    assert problems_of(Config(), {"opt.rl": [1], "widht": [1], "oppt": {"lr": [1]}, "z.z": [1]}) == [
        "the configuration has no field 'opt.rl'; did you mean 'opt.lr'?",
        "the configuration has no field 'widht'; did you mean 'width'?",
        "the configuration has no field 'oppt.lr'; did you mean 'opt.lr'?",
        "the configuration has no field 'z.z'; it has: opt.name, opt.lr, width, double",
    ]


def test_a_value_is_as_the_configuration_has_taken_it():
    @dataclass
    class Converting:
        lr: float = 0.1

        def __post_init__(self):
            self.lr = float(self.lr)

    (run,) = expand(Converting(), {"lr": ["0.5"]})

    assert (run.lr, run.config.lr) == (0.5, 0.5)


def test_values_that_the_configuration_refuses_are_named():
    assert problems_of(Config(), {"opt.lr": [-1, 1, -2]}) == [
        "the configuration refuses Run(opt.lr=-1) (ValueError: lr is negative)",
        "the configuration refuses Run(opt.lr=-2) (ValueError: lr is negative)",
    ]


@pytest.mark.parametrize(
    ("config", "axes", "problem"),
    [
        (5, {"lr": [1]}, "a configuration is a data class or a mapping, got 5"),
        (int, {"lr": [1]}, "a configuration is a data class or a mapping, got <class 'int'>: write int()"),
        ({1: 2, "lr": 1}, {"lr": [1]}, "a hyperparameter name must be text, got 1"),
        (
            {"config": 1},
            {"config": [1]},
            "the configuration has the field 'config', which is run.config: rename it",
        ),
        ({"a-b": 1, "lr": 1}, {"lr": [1]}, "'a-b' cannot be read as run.a-b: write 'a_b'"),
        (
            {"lr": 1},
            {"lr": 1},
            "values of 'lr' must be a list or tuple, got 1; write lr=[1] for a single value",
        ),
    ],
)
def test_what_is_no_configuration_is_refused(config, axes, problem):
    assert problems_of(config, axes) == [problem]


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
