import builtins
import pickle
import re

import pytest

from runmanager import errors
from runmanager.errors import (
    ClusterError,
    GridError,
    InvalidArgumentError,
    MissingExtraError,
    Problems,
    RunManagerError,
    SettingError,
)

TREE = dict(re.findall(r"-- (\w+) \((\w+)\)", str(errors.__doc__)))


@pytest.mark.parametrize(("name", "builtin"), TREE.items())
def test_every_error_is_a_run_manager_error_and_the_builtin_one_expects(name, builtin):
    error = getattr(errors, name)

    assert issubclass(error, RunManagerError)
    assert issubclass(error, getattr(builtins, builtin))


def test_the_tree_in_the_docstring_is_complete():
    names = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, RunManagerError) and value is not RunManagerError
    ]

    aliases = [name for name in names if getattr(errors, name).__name__ != name]
    assert aliases == ["HeldError"]
    assert [name for name in names if name not in aliases] == list(TREE)


def test_a_locked_experiment_is_caught_by_its_earlier_name_too():
    with pytest.raises(errors.HeldError):
        raise errors.ExperimentLockedError("locked")


def test_one_problem_of_a_grid_is_the_message():
    error = GridError(["axis 'lr' has no values"])

    assert str(error) == "axis 'lr' has no values"


def test_several_problems_of_a_grid_are_numbered():
    error = GridError(["axis 'lr' has no values", "'run' is a column"])

    assert str(error) == (
        "2 problems, nothing was started:\n  1. axis 'lr' has no values\n  2. 'run' is a column"
    )


def test_a_grid_error_crosses_a_process_border_with_its_problems():
    error = GridError(["one", "two"])

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), copy.problems, str(copy)) == (GridError, ["one", "two"], str(error))


@pytest.mark.parametrize("error", [InvalidArgumentError, MissingExtraError, ClusterError])
def test_errors_that_were_grid_errors_are_caught_as_before_and_cross_a_process_border(error):
    copy = pickle.loads(pickle.dumps(error(["one", "two"])))

    assert isinstance(copy, GridError)
    assert (type(copy), copy.problems) == (error, ["one", "two"])


def test_problems_are_collected_and_raised_at_once():
    problems = Problems()

    def refuse():
        raise GridError(["one", "two"])

    with problems.collecting():
        refuse()
    problems.check_count("jobs", True, 1)
    problems.check_choice("on_error", "stop", ("continue", "stop"))

    with pytest.raises(InvalidArgumentError) as raised:
        problems.raise_if_any(InvalidArgumentError)
    assert raised.value.problems == ["one", "two", "jobs must be a whole number, 1 or more, got True"]


def test_the_problems_of_settings_are_one_line_which_fits_into_a_row():
    error = SettingError(["epochs is a number", "precision is one of three"])

    copy = pickle.loads(pickle.dumps(error))

    assert str(error) == "epochs is a number; precision is one of three"
    assert (type(copy), copy.problems, str(copy)) == (SettingError, error.problems, str(error))
