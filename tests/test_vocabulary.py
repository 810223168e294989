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


def is_foreign(token):
    if token.type == tokenize.NAME:
        return NAMES.fullmatch(token.string)
    return token.type in (tokenize.COMMENT, tokenize.STRING) and ENGLISH.search(token.string)


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
