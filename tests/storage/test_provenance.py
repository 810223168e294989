import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError

import pytest
import torch

import runmanager
from runmanager.core import provenance as module

GIT = shutil.which("git") or ""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Stand in a new git repository with one commit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("lr = 0.1")
    for arguments in ("init -q", "add .", "-c user.name=a -c user.email=a@b.c commit -q -m first"):
        subprocess.run([GIT, *arguments.split()], check=True)
    return tmp_path


def test_versions_name_what_results_depend_on():
    versions = module.versions()

    assert list(versions)[:3] == ["python", "runmanager", "torch"]
    assert versions["python"] == platform.python_version()
    assert versions["runmanager"] == runmanager.__version__
    assert torch.__version__.startswith(versions["torch"])


def test_a_library_that_is_not_there_is_left_out(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)

    assert list(module.versions.__wrapped__()) == ["python", "runmanager"]


@pytest.mark.skipif(not GIT, reason="needs git")
def test_the_commit_says_whether_files_differ_from_it(repository):
    clean = module.git_commit.__wrapped__()
    (repository / "new.txt").touch()
    still_clean = module.git_commit.__wrapped__()
    (repository / "train.py").write_text("lr = 0.2")
    changed = module.git_commit.__wrapped__()

    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    assert (still_clean, changed) == (clean, f"{clean}+changes")


@pytest.mark.parametrize("path", ["/nowhere", None], ids=["no git", "no repository"])
def test_there_is_no_commit_without_git(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    if path:
        monkeypatch.setenv("PATH", path)

    assert module.git_commit.__wrapped__() == ""
