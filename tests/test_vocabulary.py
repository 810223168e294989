"""One word per thing: what the code and its messages must not say; and what alone may write files."""

import ast
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PACKAGE = sorted((HOME / "runmanager").rglob("*.py"))
PAGES = [HOME / "README.md", HOME / "CHANGELOG.md", *sorted((HOME / "docs").rglob("*.md"))]

# no engineer of the field writes these, or they have meant several things
ENGLISH = re.compile(
    r"\b(anew|mend(s|ed|ing)?|so many|inside of|as far as|of those that|to whom|a few words|what is more)\b",
    re.IGNORECASE,
)
NAMES = re.compile(r"\b(place|places|found|known|shown|wanted)\b")


def is_foreign(token):
    if token.type == tokenize.NAME:
        return NAMES.fullmatch(token.string)
    return token.type in (tokenize.COMMENT, tokenize.STRING) and ENGLISH.search(token.string)


@pytest.mark.slow
def test_comments_messages_and_names_are_written_in_the_words_of_the_field():
    said = []
    for path in PACKAGE:
        with path.open("rb") as file:
            tokens = [token for token in tokenize.tokenize(file.readline) if is_foreign(token)]
        said += [f"{path.relative_to(HOME)}:{token.start[0]}: {token.string}" for token in tokens]

    assert said == []


def test_pages_are_written_in_the_words_of_the_field():
    lines = [(page.name, line) for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]

    assert [line for line in lines if ENGLISH.search(line[1])] == []


SHARED = {"RunManagerCallback", "checkpoint_path"}  # what every adapter of a trainer has
BASES = {"manager"}  # the module of a subclass, called like that of its base in core


@pytest.mark.slow(everywhere=True)
def test_no_two_modules_have_one_stem_and_no_two_public_names_are_alike():
    stems, names = defaultdict(list), defaultdict(list)
    for path in PACKAGE:
        if path.name != "__init__.py":
            stems[path.stem].append(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                names[node.name].append(path)

    assert {stem: paths for stem, paths in stems.items() if len(paths) > 1 and stem not in BASES} == {}
    assert {name: paths for name, paths in names.items() if len(paths) > 1 and name not in SHARED} == {}


# Files

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


@pytest.mark.slow
def test_only_durable_writes_what_has_to_last():
    writing = {
        str(path.relative_to(HOME / "runmanager"))
        for path in PACKAGE
        if list(writing_calls(path.read_text(encoding="utf-8")))
    }

    assert writing - ALLOWED == set()


@pytest.mark.parametrize(
    "call", ["open(p, 'w')", "p.open('ab')", "p.write_text(t)", "torch.save(x, path)", "table.to_csv(path)"]
)
def test_the_rule_sees_each_way_of_writing(call):
    assert len(list(writing_calls(call))) == 1
