r"""Which runs are meant: conditions such as ``lr<0.1 and status=failed``.

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "not" one | "(" condition ")" | comparison
    comparison = name operator value | name [ "not" ] "in" "(" value { "," value } ")"
    operator   = "=" | "==" | "!=" | "<" | "<=" | ">" | ">="
    name       = word | text                  a column of the table: lr, "epoch duration"
    value      = word | text                  0.1, 1e-3, adam, "out of memory", true, None, nan
    word       = characters other than blanks, quotes, parentheses, commas and < > = !
    text       = what is between quotes, ' or "; \ takes the next character as it is

The words and, or, not and in may be written in capitals. A column may have values of several types, each of
which is compared as its type. Numbers are compared with numbers, text with text letter by letter. true and
false are compared with booleans, None with None, nan with NaN and missing values. A value in quotes is text.
All else, such as a tuple, is compared as a table shows it. ``!=`` is the opposite of ``=``. Only numbers are
less or greater than a number, and only text than text; NaN and missing values are neither.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rich.cells import cell_len

from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import text
from runmanager.outcome import Status
from runmanager.wording import did_you_mean, listed, printable

if TYPE_CHECKING:
    import pandas as pd

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<sign><=|>=|!=|==|[=<>(),])
    |(?P<word>[^\s"'(),<>=!]+))""",
    re.DOTALL | re.VERBOSE,
)
_KEYWORDS = ("and", "or", "not", "in")
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_EQUAL = ("=", "==", "!=")
_DEEPEST = 50  # parentheses and nots within each other
_CONSTANTS = {"true": True, "false": False, "none": None, "nan": math.nan}

Column = Sequence[Any]


@dataclass(frozen=True)
class Token:
    """A piece of a condition."""

    kind: str  # text, sign, word, or end
    content: str  # without quotes
    begin: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these words, in small letters or capitals."""
        return self.kind == "word" and self.content.lower() in words

    @property
    def readings(self) -> list[Any]:
        """What a value may be: text, and without quotes also a number or a constant."""
        if self.kind == "text":
            return [self.content]
        if self.content.lower() in _CONSTANTS:
            return [self.content, _CONSTANTS[self.content.lower()]]
        number = as_number(self.content)
        return [self.content] if number is None else [self.content, number]


Rows = list[bool]
Condition = Callable[[], Rows]
"""Returns which rows of the columns that it was read for meet it."""


def select(runs: "pd.DataFrame", where: str) -> "pd.DataFrame":
    """Return the rows of a table that meet a condition, in their order.

    Raises:
        InvalidArgumentError: The condition is mistaken; the message shows where.

    Example:
        >>> import pandas as pd
        >>> statuses = ["failed", "failed", "hung"]
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "lr": [0.1, 0.01, 0.01], "status": statuses})
        >>> select(runs, "lr<0.1 and status=failed")
           run    lr  status
        1    2  0.01  failed
    """
    columns = {str(name): runs.iloc[:, index].tolist() for index, name in enumerate(runs)}
    return runs[parse(where, columns)()]


def parse(where: str, columns: Mapping[str, Column]) -> Condition:
    """Read a condition on columns, whose values say what they can be compared with.

    Raises:
        InvalidArgumentError: It is mistaken; the message shows where.
    """
    return _Parser(where, columns).parse()


def names_in(given: str) -> list[str]:
    """Split names at commas; those with commas are in quotes.

    >>> names_in("lr, epoch duration,-'a,b'")
    ['lr', 'epoch duration', '-a,b']
    """
    parts = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", given)
    return [name for part in parts if (name := re.sub(r"[\"']", "", part).strip())]


def as_number(word: str) -> int | float | None:
    """Return the number that a word is, None if it is none.

    >>> as_number("1e-3"), as_number("64"), as_number("cpu"), as_number("nan")
    (0.001, 64, None, None)
    """
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", word, re.ASCII):
        return None
    try:
        return int(word)
    except ValueError:
        return float(word)


class _Parser:
    """Reads a condition from its first token to its last."""

    def __init__(self, where: str, columns: Mapping[str, Column]) -> None:
        self._where, self._columns = where, columns
        self._tokens = list(self._split())
        self._index = self._depth = 0

    def parse(self) -> Condition:
        condition = self._condition()
        token = self._next
        if token.kind != "end":
            self._refuse(token, "expected 'and', 'or' or the end; several words are written in quotes")
        return condition

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _split(self) -> Iterator[Token]:
        offset = 0
        while self._where[offset:].strip():
            match = _TOKEN.match(self._where, offset)
            if not match:
                begin = offset + len(self._where[offset:]) - len(self._where[offset:].lstrip())
                sign = self._where[begin]
                why = "this quote is not closed" if sign in "\"'" else f"unexpected {sign!r}"
                self._refuse(Token("", sign, begin, begin + 1), why)
            kind = match.lastgroup or ""
            content = match[kind]
            content = re.sub(r"\\(.)", r"\1", content[1:-1], flags=re.DOTALL) if kind == "text" else content
            yield Token(kind, content, match.start(kind), match.end())
            offset = match.end()
        end = len(self._where)
        yield Token("end", "", end, end + 1)

    def _take(self) -> Token:
        token = self._next
        self._index += token.kind != "end"
        return token

    def _accept(self, *signs: str) -> Token | None:
        is_there = self._next.kind == "sign" and self._next.content in signs
        return self._take() if is_there else None

    def _condition(self) -> Condition:
        return self._several("or", lambda: self._several("and", self._one, all), any)

    def _several(
        self, word: str, read: Callable[[], Condition], decide: Callable[[Sequence[bool]], bool]
    ) -> Condition:
        conditions = [read()]
        while self._next.is_word(word):
            self._take()
            conditions.append(read())
        return lambda: [decide(row) for row in zip(*(each() for each in conditions), strict=True)]

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(self._next, f"more than {_DEEPEST} parentheses are open")
        if self._next.is_word("not"):
            self._take()
            condition = _opposite(self._one())
        elif opened := self._accept("("):
            condition = self._condition()
            if not self._accept(")"):
                if self._next.kind == "end":
                    self._refuse(opened, "this parenthesis is not closed")
                self._refuse(self._next, "expected 'and', 'or' or ')'")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        name = self._name()
        is_opposite = self._next.is_word("not")
        if is_opposite:
            self._take()
        if self._next.is_word("in"):
            self._take()
            condition = self._compared(name, "=", self._list(name))
            return _opposite(condition) if is_opposite else condition
        operator = None if is_opposite else self._accept(*_ORDER, *_EQUAL)
        if operator is None:
            self._refuse(self._next, f"expected 'in', =, !=, <, <=, > or >= after {name.content!r}")
        condition = self._compared(name, operator.content, [self._value(name, operator.content)])
        return _opposite(condition) if operator.content == "!=" else condition

    def _compared(self, name: Token, operator: str, values: Sequence[Token]) -> Condition:
        readings = [reading for value in values for reading in value.readings]
        column, order = self._columns[name.content], _ORDER.get(operator)
        if order:
            given = next((each for each in readings if _kind(each) == "numbers"), values[0].content)
            return lambda: [_is_ordered(value, given, order) for value in column]
        return lambda: [any(_is_equal(value, each) for each in readings) for value in column]

    def _name(self) -> Token:
        name = self._take()
        if name.kind not in ("word", "text") or name.is_word(*_KEYWORDS):
            self._refuse(name, "expected the name of a column")
        if name.content in self._columns:
            return name
        self._refuse_words(name, self._columns, "name")
        if as_number(name.content) is not None:
            self._refuse(name, "a comparison begins with the name of a column, as lr<0.1")
        hint = did_you_mean(name.content, self._columns)
        return self._refuse(name, f"these runs have no column {name.content!r}; {hint}")

    def _list(self, name: Token) -> list[Token]:
        if not self._accept("("):
            self._refuse(self._next, f"expected '(' and values, as {name.content} in (1, 2)")
        values = [self._value(name, "=")]
        while self._accept(","):
            values.append(self._value(name, "="))
        if not self._accept(")"):
            self._refuse(self._next, "expected ',' or ')'")
        return values

    def _value(self, name: Token, operator: str) -> Token:
        value = self._take()
        if value.kind not in ("word", "text") or value.is_word(*_KEYWORDS):
            quotes = "; this word is written in quotes" if value.kind == "word" else ""
            self._refuse(value, f"expected a value{quotes}")
        self._refuse_words(value, [*map(str, Status), *map(text, self._columns[name.content])], "value")
        self._check(name, operator, value)
        return value

    def _refuse_words(self, first: Token, names: Iterable[str], what: str) -> None:
        """Refuse a name or a value of several words that is not in quotes."""
        words = [first]
        for token in self._tokens[self._index :]:
            if first.kind != "word" or token.kind != "word" or token.is_word(*_KEYWORDS):
                break
            words.append(token)
            several = " ".join(word.content for word in words)
            if several in names:
                whole = Token("word", several, first.begin, token.end)
                self._refuse(whole, f'a {what} of several words is written in quotes: "{several}"')

    def _check(self, name: Token, operator: str, value: Token) -> None:
        """Refuse a value of a type that its column does not have."""
        present = [each for each in self._columns[name.content] if not _is_missing(each) and each is not None]
        if name.content == "status":
            statuses = [*map(str, Status), *map(str, present)]
            if operator not in _ORDER and value.content not in statuses:
                hint = did_you_mean(value.content, Status, "the statuses are")
                self._refuse(value, f"no status is {value.content!r}; {hint}")
        is_constant = value.is_word("none", "nan")
        if not present or (is_constant and operator not in _ORDER):
            return
        kinds = {_kind(each) for each in present}
        if operator in _ORDER:
            fits = kinds & {_kind(each) for each in value.readings} & {"numbers", "text"}
            if kinds == {"text"} and len(value.readings) > 1:
                fits = set()  # a number
        else:
            fits = kinds - {"numbers", "booleans"} or kinds & {_kind(each) for each in value.readings}
        if not fits:
            holds = " and ".join(sorted(kinds))
            examples = listed(dict.fromkeys(text(each) for each in present), 3)
            rule = "; what is in quotes is text" if value.kind == "text" else ""
            self._refuse(value, f"column {name.content!r} holds {holds}, as {examples}{rule}")

    def _refuse(self, token: Token, why: str) -> NoReturn:
        before = printable(self._where[: token.begin])
        width = max(cell_len(printable(self._where[token.begin : token.end])), 1)
        lines = [printable(why), f"  {printable(self._where)}", f"  {' ' * cell_len(before)}{'^' * width}"]
        raise InvalidArgumentError(["where: " + "\n".join(lines)])


def _opposite(condition: Condition) -> Condition:
    return lambda: [not row for row in condition()]


def _is_missing(value: Any) -> bool:
    return (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NAType", "NaTType")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "booleans"
    return "numbers" if isinstance(value, int | float) else "text" if isinstance(value, str) else "other values"


def _is_equal(value: Any, given: Any) -> bool:
    """Compare the value of a row with one reading of a given value."""
    if given is None:
        return value is None
    if _is_missing(given):
        return _is_missing(value)
    if isinstance(given, str):
        return not _is_missing(value) and _kind(value) in ("text", "other values") and text(value) == given
    return _kind(value) == _kind(given) and bool(value == given)


def _is_ordered(value: Any, given: Any, order: Callable[[Any, Any], bool]) -> bool:
    kind = _kind(value)
    return kind in ("numbers", "text") and kind == _kind(given) and order(value, given)
