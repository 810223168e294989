"""What the package says about itself: its name, what it needs, and what its page shows."""

import ast
import configparser
import re
import sys
import tomllib
from pathlib import Path

import pytest

import runmanager

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
