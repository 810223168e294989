import errno
import os
from types import SimpleNamespace

import pytest

from runmanager.errors import StorageError
from runmanager.storage import durable
from runmanager.storage.durable import AppendFile, make_folder, write_file


@pytest.fixture
def faulty(monkeypatch):
    """Give the module an operating system in which some functions are others."""

    def replace(**functions):
        monkeypatch.setattr(durable, "os", SimpleNamespace(**{**vars(os), **functions}))

    return replace


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

    with pytest.raises(
        StorageError, match=r": \d+\.\d of \d+\.\d GB free\); what was committed before is kept"
    ):
        write_file(tmp_path / "file", b"new")

    assert list(tmp_path.iterdir()) == []


def test_short_writes_go_on_until_all_is_written(tmp_path, faulty):
    faulty(write=short_write)

    write_file(tmp_path / "file", b"0123456789")
    with AppendFile(tmp_path / "records") as file:
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

    with AppendFile(path) as file:
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
        AppendFile(path)

    assert caught.value.errno == errno.EEXIST
    assert path.read_bytes() == b"theirs\n"


def test_an_append_file_can_be_closed_twice(tmp_path):
    file = AppendFile(tmp_path / "records")

    file.close()
    file.close()

    with pytest.raises(StorageError, match="Bad file descriptor"):
        file.append(b"late\n")
