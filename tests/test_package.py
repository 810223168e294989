"""What the package says about itself: what it needs, what its page shows, its names and its errors."""

import ast
import builtins
import configparser
import pickle
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import runmanager
from runmanager import errors

HOME = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(HOME / "setup.cfg")
PYPROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))
README = (HOME / "README.md").read_text(encoding="utf-8")
NAME = "torch-runmanager"

DISTRIBUTIONS = {
    "PIL": "pillow",
    "google": "protobuf",
    "google_crc32c": "google-crc32c",
    "markdown_it": "markdown-it-py",
}
"""Module -> what it is installed as, where the names differ; of `google` only protobuf is imported."""
OF_OTHERS = {
    "_caught": "beside the modules that a program imports in place of wandb and trackio",
    "trackio": "imported by a program that sends to it",
    "IPython": "looked at only where a notebook has imported it",
    "pytorch_lightning": "the other package of Lightning, used only where the program has imported it",
    "tensorboard_data_server": "tensorboard's own, and used only where it is there",
}


def names_in(section, option):
    """Return the names of the distributions that an option lists, without their bounds."""
    lines = [line for line in SETUP[section][option].splitlines() if line and not line.startswith("#")]
    return {re.split(r"[\[>=~<]", line)[0]: line for line in lines}


def imported_modules():
    """Return module -> a file that imports it, for all top-level modules but the standard library's."""
    modules: dict[str, str] = {}
    for path in sorted((HOME / "runmanager").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            modules |= {name.partition(".")[0]: str(path.relative_to(HOME)) for name in names}
    return {
        name: path for name, path in modules.items() if name not in {*sys.stdlib_module_names, "runmanager"}
    }


def test_the_files_that_describe_the_package_agree():
    project = PYPROJECT["project"]

    assert SETUP["metadata"]["name"] == project["name"] == NAME
    assert SETUP["options"]["python_requires"] == project["requires-python"]
    citation = (HOME / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {runmanager.__version__}\n" in citation


@pytest.mark.slow
def test_every_module_that_is_imported_is_declared():
    declared = names_in("options", "install_requires")
    for extra in ("ray", "mlflow", "wandb", "lightning", "huggingface", "optuna", "parquet"):
        declared |= names_in("options.extras_require", extra)

    undeclared = {
        module: path
        for module, path in imported_modules().items()
        if DISTRIBUTIONS.get(module, module) not in declared and module not in OF_OTHERS
    }

    assert undeclared == {}


@pytest.mark.parametrize("extra", [None, *SETUP["options.extras_require"]])
def test_everything_that_is_declared_has_a_lower_bound(extra):
    declared = names_in("options.extras_require", extra) if extra else names_in("options", "install_requires")
    declared.pop(NAME, None)

    assert [line for line in declared.values() if not re.search(r"[>=]=?\d", line)] == []


def test_every_command_that_installs_an_extra_names_this_package_and_an_extra_of_it():
    files = [*HOME.glob("*.md"), *HOME.glob("docs/*.md"), *HOME.glob("runmanager/**/*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    commands = re.findall(
        r"([\w.-]+)\[([\w,]+)\]['`]", "\n".join(re.findall(r"pip install.*|``.*\[\w+\]``", text))
    )

    assert {name for name, _ in commands} == {NAME, "."}
    assert {extra for _, extras in commands for extra in extras.split(",")} <= {
        *SETUP["options.extras_require"]
    }
    assert not re.search(r"pip install '?runmanager\b", text)


def test_the_page_of_the_package_has_no_link_that_leads_nowhere(monkeypatch):
    described: dict[str, str] = {}
    monkeypatch.setattr("setuptools.setup", described.update)

    exec(compile((HOME / "setup.py").read_text(), HOME / "setup.py", "exec"), {"__file__": HOME / "setup.py"})  # noqa: S102

    text = described["long_description"]
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link] == []
    assert re.sub(r"\W+", " ", text).strip().startswith("runmanager Which setting is better or is it luck")
    assert "| Quickstart | How do I get" in text
    for block in re.findall(r"^```.*?^```", README, flags=re.DOTALL | re.MULTILINE):
        assert block in text


# Names

HEAVY = (
    "torch", "torchvision", "tensorboard", "pandas", "numpy", "rich", "scipy", "pyarrow", "mlflow", "wandb",
)  # fmt: skip
LIGHT = f"""
import sys
import runmanager
from runmanager import RunBuilder, GridError
RunBuilder.get_runs({{'lr': [0.1], 'device': ['cpu']}})
print([name for name in {HEAVY} if name in sys.modules])
"""
FIRST = """
import random, sys
from runmanager import RayExecutor, SuccessiveHalving, run_grid

def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2):
            manager.track_loss(run.lr, 1)

state = random.getstate()
RayExecutor()
options = {"experiment": "e", "executor": "inline", "display": True, "prune": SuccessiveHalving("loss")}
runs = run_grid({"lr": [1, 2]}, train, **options).runs
found = [name for name in ("torchvision", "optuna", "ray") if name in sys.modules]
print(random.getstate() == state, found, runs["status"].tolist())
"""


def test_the_package_and_a_grid_load_nothing_heavy():
    found = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)

    assert found.stdout == "[]\n"


@pytest.mark.slow(everywhere=True)
def test_a_first_grid_draws_no_random_number_and_imports_no_extra_that_it_does_not_need(warm, tmp_path):
    (tmp_path / "program.py").write_text(FIRST)

    # where the names were imported, warm.py looks itself
    last = warm.execute(tmp_path / "program.py").stdout.splitlines()[-1]
    assert last == "True [] ['completed', 'pruned']"


def test_the_public_names_are_sorted_all_there_is_and_resolve():
    assert None not in [getattr(runmanager, name) for name in runmanager.__all__]
    assert {*runmanager.__all__} <= {*vars(runmanager)}  # at once from now on
    assert runmanager.__all__ == sorted(set(runmanager.__all__))
    assert dir(runmanager) == runmanager.__all__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        runmanager.RunManger  # noqa: B018

    assert str(caught.value) == "module 'runmanager' has no attribute 'RunManger'; did you mean 'RunManager'?"


# Errors

TREE = dict(re.findall(r"-- (\w+) \((\w+)\)", str(errors.__doc__)))


def test_every_error_is_in_the_documented_tree_and_is_the_builtin_one_that_a_user_expects():
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    names = [each.__name__ for each in classes if issubclass(each, errors.RunManagerError)]

    assert names == ["RunManagerError", *TREE]
    assert all(issubclass(getattr(errors, name), getattr(builtins, TREE[name])) for name in TREE)


@pytest.mark.parametrize("kind", [errors.GridError, errors.InvalidArgumentError, errors.MissingExtraError])
def test_problems_are_numbered_and_cross_a_process_border(kind):
    copy = pickle.loads(pickle.dumps(kind(["one", "two"])))

    assert (type(copy), copy.problems) == (kind, ["one", "two"])
    started = ", nothing was started" if kind is not errors.InvalidArgumentError else ""
    assert str(copy) == f"2 problems{started}:\n  1. one\n  2. two"
    assert str(kind(["one"])) == "one"


SCRIPT = """
import runmanager
def train(run, manager):
    raise ValueError("as the user wrote it")
runmanager.run_grid({"lr": []}, train, experiment="e")
"""


@pytest.mark.slow
def test_a_script_shows_its_own_line_and_the_sentence_alone(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert [shlex.split(line)[1].rpartition("/")[2] for line in frames] == ["script.py,"]
    assert done.stderr.splitlines()[-1].endswith(
        "axis 'lr' has no values: give it at least one, or leave it out"
    )
