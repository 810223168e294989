"""One word per thing: what the code and its messages must not say."""

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


def texts_of(path):
    """Yield the number of each line with a comment or a string, and that text."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], token.string


def names_of(path):
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(HOME)))
def test_comments_and_messages_are_written_in_the_words_of_the_field(path):
    assert [f"{line}: {text}" for line, text in texts_of(path) if ENGLISH.search(text)] == []


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(HOME)))
def test_names_say_what_they_hold(path):
    assert [f"{line}: {name}" for line, name in names_of(path) if NAMES.fullmatch(name)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(HOME)))
def test_pages_are_written_in_the_words_of_the_field(path):
    lines = path.read_text(encoding="utf-8").splitlines()

    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if ENGLISH.search(line)] == []


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
