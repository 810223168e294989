import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch

import runmanager
from runmanager.storage import fingerprint as module
from runmanager.storage.fingerprint import changes_between


def fingerprint_changes(before, now, **options):
    return [str(change) for change in changes_between(before, now, **options)]


GIT = shutil.which("git") or ""


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"code": {"train": "1"}}, []),
        ({"code": {"train": "1"}}, {}, []),
        ({}, {"data": {"data": "1"}}, []),
        ({"code": {"train": "1"}}, {"code": {"train": "1"}, "data": {"data": "1"}}, ["data= is given now"]),
        ({"data": {"data": "1"}}, {"code": {"train": "1"}}, []),
        ({"values": {"a": "1", "b": "1"}}, {"values": {"a": "2", "c": "1"}}, ["a was 1, is 2"]),
        ({"statements": {"a": "1", "b": "1"}}, {"statements": {"a": "2"}}, ["source of a"]),
        (
            {"code": {"a": "1", "b": "1"}},
            {"code": {"a": "2", "c": "1"}},
            ["source of a", "source of b", "source of c"],
        ),
        ({"data": {"data": "1"}}, {"data": {"data": "2"}}, ["the data"]),
        ({"versions": {"torch": "1"}}, {"versions": {"numpy": "2"}}, ["numpy none -> 2", "torch 1 -> none"]),
        (
            {"versions": {"torch": "1"}, "data": {"data": "1"}, "code": {"train": "1"}},
            {"versions": {"torch": "2"}, "data": {"data": "2"}, "code": {"train": "2"}},
            ["source of train", "the data", "torch 1 -> 2"],
        ),
    ],
    ids=[
        "new",
        "gone",
        "no grid",
        "data given",
        "data no longer given",
        "values",
        "statements",
        "code",
        "data",
        "versions",
        "all",
    ],
)
def test_changes_are_said_in_words(before, now, said):
    assert fingerprint_changes(before, now) == said


def side(value, statement):
    values, statements = ({} if text is None else {"x": text} for text in (value, statement))
    return {"values": values, "statements": statements}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (side("None", None), side(None, "a"), []),  # GradScaler() if cuda else None, on another machine
        (side(None, "a"), side(None, "b"), ["source of x"]),
        (side("[<Crop>, 1]", "a"), side("[<Crop>, 2]", "a"), ["x was [<Crop>, 1], is [<Crop>, 2]"]),
    ],
)  # fmt: skip
def test_a_statement_counts_where_the_value_does_not_say_it_all(before, now, said):
    assert fingerprint_changes(before, now) == said


def test_only_common_names_are_compared_if_that_is_wanted():
    before, now = {"code": {"a": "1", "b": "1"}}, {"code": {"a": "2", "c": "1"}, "data": {"data": "1"}}

    assert fingerprint_changes(before, now, only_common=True) == ["source of a"]


def test_builds_and_patches_of_a_version_are_the_same():
    assert fingerprint_changes({"versions": {"torch": "2.15.0+cpu"}}, {"versions": {"torch": "2.15.1"}}) == []


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


@pytest.mark.parametrize(
    ("arguments", "command"),
    [(["/home/me/train.py", "--token=secret"], "train.py"), (["-c"], "-c"), ([""], ""), ([], "")],
)
def test_the_command_is_the_program_without_its_arguments(monkeypatch, arguments, command):
    monkeypatch.setattr(sys, "argv", arguments)

    assert module.command() == command
