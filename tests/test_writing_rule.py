import ast
from pathlib import Path

import pytest

import runmanager

PACKAGE = Path(runmanager.__file__).parent
ALLOWED = {
    "core/files.py",  # what it is for
    "tensorboard/event_file.py",  # a view, which may be lost
    "executors/output.py",  # what a run prints, which a full disk may cut
    "checks/resumes.py",  # traces in a temporary folder
    "front/command.py",
    "front/caught/_caught.py",  # what a program prints and calls, of which rows are made
    "front/artifacts.py",  # copies beside a run, each under its name when it is whole
    "datasets.py",  # unpacked copies, made anew from the verified files
}
WRITERS = {"write_text", "write_bytes", "to_json", "tofile"}
WRITERS_TO = {"torch.save": 1, "np.savez": 0, ".to_csv": 0}  # -> which argument is the file


def writing_calls(source):
    """Find the calls in a module that write a file themselves, and not into memory (a name `file`)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            full, arguments = ast.unparse(node.func), [ast.unparse(argument) for argument in node.args]
            name = full.rpartition(".")[2]
            target = WRITERS_TO.get(full, WRITERS_TO.get(full.removeprefix(full.rpartition(".")[0])))
            if name in WRITERS or (target is not None and arguments[target:] and arguments[target] != "file"):
                yield full
            if name == "open" and any(set(eval_text(a)) & set("wax+") for a in arguments):
                yield full


def eval_text(argument):
    """Return the text of an argument that is short text, as modes are; else nothing."""
    return argument[1:-1] if argument[:1] in "'\"" and len(argument) < 6 else ""


def test_only_durable_writes_what_has_to_last():
    writing = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if list(writing_calls(path.read_text(encoding="utf-8")))
    }

    assert writing - ALLOWED == set()


@pytest.mark.parametrize(
    "call", ["open(p, 'w')", "p.open('ab')", "p.write_text(t)", "torch.save(x, path)", "table.to_csv(path)"]
)
def test_the_rule_sees_each_way_of_writing(call):
    assert len(list(writing_calls(call))) == 1
