import errno
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from runmanager.core import files
from runmanager.core.files import (
    AppendFile,
    make_folder,
    opened,
    read_end,
    read_file,
    remove_leftovers,
    strict_json,
    sync,
    write_file,
)
from runmanager.errors import StorageError


@pytest.fixture
def faulty(monkeypatch):
    """Give the module an operating system in which some functions are others; it syncs by `os.fsync`."""
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="any"))

    def replace(**functions):
        monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), **functions}))

    return replace


def records(path, first=b""):
    write_file(path, first, is_new=True)
    return closing(AppendFile(path, len(first)))


def failing(code):
    def fail(*_arguments):
        raise OSError(code, os.strerror(code))

    return fail


def short_write(descriptor, content):
    return os.write(descriptor, bytes(content[:3]))


def filling_disk(free):
    """Write until `free` bytes are used, the last time only a part, then fail."""
    left = [free]

    def write(descriptor, content):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(descriptor, bytes(content[: left[0]]))
        left[0] -= written
        return written

    return write


def test_a_file_is_written_with_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()

    write_file(tmp_path / "file", b"content")

    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "usual"]


@pytest.mark.parametrize("function", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_file_that_cannot_be_written_keeps_its_old_content(tmp_path, faulty, function, code):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    faulty(**{function: failing(code)})

    with pytest.raises(StorageError) as caught:
        write_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (caught.value.errno, caught.value.filename) == (code, str(path))
    assert f"cannot write ({os.strerror(code)}" in str(caught.value)


def test_ctrl_c_while_a_file_is_written_keeps_its_old_content(tmp_path, faulty):
    def interrupt(_descriptor):
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    faulty(fsync=interrupt)

    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_named_with_what_is_free(tmp_path, faulty):
    faulty(write=filling_disk(2))

    with pytest.raises(StorageError, match=r": \d+\.\d of \d+\.\d GB free\); committed epochs are kept"):
        write_file(tmp_path / "file", b"new")

    assert list(tmp_path.iterdir()) == []


def test_short_writes_go_on_until_all_is_written(tmp_path, faulty):
    faulty(write=short_write)

    write_file(tmp_path / "file", b"0123456789")
    with records(tmp_path / "records") as file:
        file.append(b"0123456789\n")

    assert (tmp_path / "file").read_bytes() == b"0123456789"
    assert (tmp_path / "records").read_bytes() == b"0123456789\n"


def test_the_content_is_on_disk_before_its_name_and_the_folder_after(tmp_path, faulty):
    calls = []

    def noted(name):
        def call(*arguments):
            calls.append(name)
            return getattr(os, name)(*arguments)

        return call

    faulty(**{name: noted(name) for name in ("write", "fsync", "replace")})

    write_file(tmp_path / "file", b"content")

    assert calls == ["write", "fsync", "replace", "fsync"]


def test_folders_are_made_with_their_parents_and_once(tmp_path):
    for _ in range(2):
        make_folder(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match=r"cannot write \(Not a directory\)") as caught:
        make_folder(tmp_path / "file" / "folder")

    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize(
    "functions",
    [{"write": filling_disk(4)}, {"write": failing(errno.EIO)}, {"fsync": failing(errno.EDQUOT)}],
    ids=["full", "write", "fsync"],
)
def test_a_record_that_cannot_be_appended_leaves_whole_records(tmp_path, faulty, functions):
    path = tmp_path / "records"

    with records(path) as file:
        file.append(b"first\n")
        faulty(**functions)
        with pytest.raises(StorageError):
            file.append(b"second\n")
        left = path.read_bytes()
        faulty()
        file.append(b"third\n")

    assert left == b"first\n"
    assert path.read_bytes() == b"first\nthird\n"


def test_a_journal_that_exists_has_another_writer(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"theirs\n")

    with pytest.raises(StorageError) as caught:
        records(path)

    assert caught.value.errno == errno.EEXIST
    assert path.read_bytes() == b"theirs\n"


def test_an_append_file_can_be_closed_twice(tmp_path):
    with records(tmp_path / "records") as file:
        pass

    file.close()
    file.close()

    with pytest.raises(StorageError, match="Bad file descriptor"):
        file.append(b"late\n")


def noting(calls, *names):
    def noted(name):
        def call(*arguments, **options):
            calls.append(name)
            return getattr(os, name)(*arguments, **options)

        return call

    return {name: noted(name) for name in names}


def test_a_generation_keeps_the_one_before(tmp_path, faulty):
    path, previous = tmp_path / "file", tmp_path / "previous"
    calls: list[str] = []
    faulty(**noting(calls, "replace", "fsync"))

    for content in (b"1", b"2", b"3"):
        write_file(path, content, previous)

    assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")
    again = ["fsync", "replace", "replace", "fsync"]
    assert calls == ["fsync", "replace", "fsync", *again, *again]


def test_a_file_is_created_once_and_on_disk_with_its_name(tmp_path, faulty):
    calls: list[str] = []
    faulty(**noting(calls, "link", "fsync"))

    write_file(tmp_path / "file", b"1", is_new=True)
    with pytest.raises(StorageError) as caught:
        write_file(tmp_path / "file", b"2", is_new=True)

    assert caught.value.errno == errno.EEXIST

    assert (tmp_path / "file").read_bytes() == b"1"
    assert calls == ["fsync", "link", "fsync", "fsync", "link"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_created_once_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)

    write_file(tmp_path / "file", b"1", is_new=True)
    with pytest.raises(StorageError) as caught:
        write_file(tmp_path / "file", b"2", is_new=True)

    assert caught.value.errno == errno.EEXIST

    assert (tmp_path / "file").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_survive_a_power_failure_with_their_parents(tmp_path, faulty):
    calls: list[str] = []
    faulty(**noting(calls, "open", "fsync", "close"))

    make_folder(tmp_path / "a" / "b")
    sync(tmp_path)

    assert calls == ["open", "fsync", "close"] * 3


def test_what_writers_left_that_died_is_removed_by_name_or_all(tmp_path):
    for name in (".a.1.tmp", ".b.1.tmp", "a", ".a"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".a.2.tmp").touch()  # its writer may live

    remove_leftovers(tmp_path, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a", ".a.2.tmp", ".b.1.tmp", "a"]
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a", ".a.2.tmp", "a"]


def test_what_is_removed_by_another_meanwhile_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda folder, _: [folder / ".a.1.tmp"])

    remove_leftovers(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_every_descriptor_is_closed(tmp_path, faulty):
    calls: list[str] = []
    faulty(**noting(calls, "open", "close"))

    write_file(tmp_path / "file", b"content")
    assert calls == ["open", "close"] * 2
    calls.clear()
    with pytest.raises(StorageError, match="another process writes it"):
        AppendFile(tmp_path / "file", 0, size=6)
    assert calls == ["open", "close"]


def test_a_file_is_reopened_where_its_whole_records_end(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"first\ntorn")

    with closing(AppendFile(path, 6, size=10)) as file:
        file.append(b"second\n")

    assert path.read_bytes() == b"first\nsecond\n"


@pytest.mark.parametrize("read", [lambda path: read_file(path, 9)[0], lambda path: read_end(path, 9)])
def test_no_link_is_followed_and_nothing_waits_for_a_pipe(tmp_path, read):
    (tmp_path / "file").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")

    assert read(tmp_path / "file") == b"secret"
    with pytest.raises(OSError, match="a link, which is not followed") as caught:
        read(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(OSError, match="not a file"):
        read(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    with pytest.raises(StorageError, match="cannot write"):
        AppendFile(tmp_path / "link", 6)


def test_a_file_that_was_opened_is_closed(tmp_path):
    (tmp_path / "file").touch()

    with opened(tmp_path / "file") as (file, _):
        pass

    assert file.closed


def test_json_is_indented_unicode_and_strict():
    assert strict_json({"a": ["é", "\ud800"]}) == '{\n  "a": [\n    "é",\n    "\\ud800"\n  ]\n}\n'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict_json(float("nan"))


def test_storage_errors_pass_as_they_are(tmp_path):
    with pytest.raises(StorageError, match="mine"), files.explained(tmp_path):
        raise StorageError("mine")
