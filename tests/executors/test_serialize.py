import functools
import subprocess
import sys
import textwrap
import threading

import pytest

from runmanager import GridError
from runmanager.executors.serialize import dump, dump_error, load_dumped

LOCK = threading.Lock()
SETTINGS = {"depth": 2, "guards": [1, LOCK]}


def sent(work):
    return load_dumped(dump(work))


def in_another_process(tmp_path, main, calls):
    """Define functions in the main module of one process and call them in another; return what it prints."""
    (tmp_path / "main.py").write_text(
        f"{textwrap.dedent(main)}\nimport sys\nfrom runmanager.executors.serialize import dump\n"
        f"sys.stdout.buffer.write(dump({calls}))\n"
    )
    command = [sys.executable, str(tmp_path / "main.py")]
    made = subprocess.run(command, check=True, capture_output=True)
    reading = (
        "import sys; from runmanager.executors.serialize import load_dumped; "
        "print([call() for call in load_dumped(sys.stdin.buffer.read())])"
    )
    read = subprocess.run([sys.executable, "-c", reading], input=made.stdout, check=True, capture_output=True)
    return read.stdout.decode().strip()


def test_a_lambda_is_sent():
    assert sent(lambda: 3)() == 3


def test_a_closure_is_sent_with_what_it_encloses():
    factor = 4

    def times(number):
        return factor * number

    assert sent(functools.partial(times, 2))() == 8


def test_a_function_of_a_module_is_sent_by_name():
    assert sent(textwrap.dedent) is textwrap.dedent


def test_functions_and_classes_of_the_main_module_reach_another_process(tmp_path):
    main = """
    import dataclasses

    FACTOR = 3

    @dataclasses.dataclass
    class Network:
        width: int

        def size(self):
            return FACTOR * self.width

    def train():
        return Network(2).size()
    """

    assert in_another_process(tmp_path, main, "[train]") == "[6]"


@pytest.mark.slow
def test_functions_that_set_flags_of_torch_reach_another_process(tmp_path):
    main = """
        import torch

        def cudnn():
            torch.backends.cudnn.enabled_here = 1
            return torch.backends.cudnn.enabled_here

        def mkldnn():
            torch.backends.mkldnn.enabled_here = 2
            return torch.backends.mkldnn.enabled_here
    """

    assert in_another_process(tmp_path, main, "[cudnn, mkldnn]") == "[1, 2]"


@pytest.mark.slow(everywhere=True)
def test_functions_of_the_main_module_keep_their_cache(tmp_path):
    main = """
    import functools

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    @functools.lru_cache(maxsize=2, typed=True)
    def data():
        return []

    def train():
        return fibonacci(80), data() is data(), data.cache_parameters()
    """

    shown = in_another_process(tmp_path, main, "[train, lambda: fibonacci(9)]")

    assert shown == "[(23416728348467685, True, {'maxsize': 2, 'typed': True}), 34]"


def test_a_cache_inside_of_a_function_is_sent():
    @functools.cache
    def numbers():
        return [1]

    received = sent(numbers)

    assert received() is received()


def test_a_lock_that_is_enclosed_is_named():
    lock = threading.Lock()

    def train():
        with lock:
            pass

    with pytest.raises(
        GridError, match=r"^train cannot be sent to a worker process \(TypeError: cannot pickle '_thread.lock'"
    ):
        dump(train)


def test_what_refuses_by_itself_is_named_with_its_reason():
    class Refusing:
        def __reduce__(self):
            raise RuntimeError("not me")

    with pytest.raises(
        GridError, match=r"Refusing cannot be sent to a worker process \(RuntimeError: not me\)"
    ):
        dump(Refusing())


class TwoPartsError(Exception):
    """An error that is written, but cannot be read again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("lr"), KeyError, "'lr'"),
        (GridError(["one", "two"]), GridError, "2 problems"),
        (RuntimeError(LOCK), RuntimeError, "RuntimeError: <unlocked _thread.lock"),
        (TwoPartsError("this", "that"), RuntimeError, "TwoPartsError: this and that"),
    ],
)
def test_an_exception_that_cannot_be_sent_or_read_again_goes_as_its_text(error, kind, text):
    received = load_dumped(dump_error(error))

    assert type(received) is kind
    assert str(received).startswith(text)


def test_an_exception_that_nobody_foresaw_takes_its_traceback_along():
    def find():
        raise KeyError("lr")

    with pytest.raises(KeyError) as caught:
        find()

    (note,) = load_dumped(dump_error(caught.value)).__notes__
    assert note.startswith("in its process:\nTraceback")
    assert 'raise KeyError("lr")' in note
