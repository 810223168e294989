import ast
import re

import pytest

from tests.docs.messages import ERRORS, HOME, _messages_of, messages

PAGE = (HOME / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`+)(.+?) ?\1 \| (.+) \| (.+) \|$", PAGE, flags=re.MULTILINE)
LISTED = [message for _, message, _, _ in ROWS]


def test_the_page_lists_every_message_of_the_code_and_no_other():
    raised = messages()

    assert {message: file for message, file in raised.items() if message not in LISTED} == {}  # to be added
    assert [message for message in LISTED if message not in raised] == []  # to be removed
    assert len(LISTED) == len(set(LISTED))


def test_each_message_has_a_cause_and_a_cure():
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]

    assert len(ROWS) == len(lines)
    assert [message for _, message, cause, cure in ROWS if len(cause) < 5 or len(cure) < 5] == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise GridError(['no axis here: write one'])", "no axis here: write one"),
        ("raise StorageError(f'{x} is too full: {y}{z}')", "… is too full: …"),
        ("rule = 'a rule is one'\n    raise MetricError(f'{rule}, got {x!r}')", "a rule is one, got …"),
        ("problems.append('give me a list')", "give me a list"),
        ("problems += ['give me a list' for x in y]", "give me a list"),
    ],
)
def test_messages_are_read_from_the_code(code, text):
    assert list(_messages_of(ast.parse(f"def check():\n    {code}"))) == [text]


def test_the_page_names_only_errors_that_are_public():
    assert set(re.findall(r"\b[A-Z]\w+Error\b", PAGE)) <= ERRORS | {"ValueError"}
