"""Select rows by a condition such as ``lr<0.1 and status=failed``, with pandas' `query`.

A condition has comparisons, and, or, not, in and parentheses, as in `DataFrame.query`. In addition, ``=`` is
accepted for ``==``, names and values may contain spaces, and a word that is not a number is text.

User input is never evaluated: the query has placeholders for columns, and values are parameters. Numbers are
compared with numbers; other values are compared by their text in a table.
"""

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rich.cells import cell_len

from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import text
from runmanager.outcome import Status
from runmanager.wording import did_you_mean, listed, printable

if TYPE_CHECKING:
    import pandas as pd

_LETTER = r"""[^\s"'`(),\[\]<>=!]"""
_KEYWORDS = {"&": "and", "|": "or", "~": "not"}
_KEYWORD = rf"(?:and|or|not|in|[&|~])(?!{_LETTER})"
_TOKEN = rf"""(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|==|[=<>(),\[\]])
    |(?P<keyword>{_KEYWORD})|(?P<words>{_LETTER}+(?:\s+(?!{_KEYWORD}){_LETTER}+)*)"""
_CONSTANTS = {"true": True, "false": False, "none": None, "nan": math.nan}
_ORDER: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_EQUAL = (ast.Eq, ast.In)  # != and not in are their opposites
_RULE = "expected comparisons of a column with a value, as lr<0.1, joined by and, or"


@dataclass(frozen=True)
class Token:
    """A piece of a condition."""

    kind: str  # name (always of a column), quoted, words, sign, keyword or end
    content: str  # content without quotes
    begin: int
    end: int

    @property
    def code(self) -> str:
        """The token as Python code, "" for a column or a value."""
        if self.kind == "sign":
            return "==" if self.content == "=" else self.content
        return _KEYWORDS.get(self.content, self.content.lower()) if self.kind == "keyword" else ""

    @property
    def readings(self) -> list[Any]:
        """The possible values of the token: text and, without quotes, also a number or a constant."""
        number = as_number(self.content)
        if self.kind == "words" and self.content.lower() in _CONSTANTS:
            return [_CONSTANTS[self.content.lower()], self.content]
        return [self.content] if self.kind != "words" or number is None else [number, self.content]


def select(runs: "pd.DataFrame", where: str) -> "pd.DataFrame":
    """Return the rows of a table that meet a condition, in their order.

    Raises:
        InvalidArgumentError: `where` has an error; the message points at its position.

    Example:
        >>> import pandas as pd
        >>> statuses = ["failed", "failed", "hung"]
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "lr": [0.1, 0.01, 0.01], "status": statuses})
        >>> select(runs, "lr<0.1 and status=failed")
           run    lr  status
        1    2  0.01  failed
    """
    import pandas as pd

    query = _Query(where, {str(name): runs.iloc[:, index].tolist() for index, name in enumerate(runs)})
    try:
        expression = query.expression()
        columns = pd.DataFrame(query.columns, range(len(runs)), dtype=object)
        rows = columns.query(expression, local_dict=query.values, engine="python").index
    except (RecursionError, MemoryError):  # Python's parser raises MemoryError
        raise InvalidArgumentError(["where: too many comparisons or parentheses: use in (a, b)"]) from None
    return runs.iloc[rows]


def names_in(given: str) -> list[str]:
    """Split names at commas; a name with a comma is in quotes.

    >>> names_in("lr, epoch duration,-'a,b'")
    ['lr', 'epoch duration', '-a,b']
    """
    parts = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", given)
    return [name for part in parts if (name := re.sub(r"[\"']", "", part).strip())]


def as_number(word: str) -> int | float | None:
    """Parse a word as a number; return None if the word is not a number.

    >>> as_number("1e-3"), as_number("64"), as_number("cpu"), as_number("nan")
    (0.001, 64, None, None)
    """
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", word, re.ASCII):
        return None
    try:
        return int(word)
    except ValueError:
        return float(word)


class _Query:
    """A condition for pandas: an expression, and the columns and values for its placeholders."""

    def __init__(self, where: str, runs: dict[str, list[Any]]) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.values: dict[str, Any] = {}
        self._where, self._runs = where, runs
        self._tokens = list(self._split())
        self._source = (
            " ".join(token.code or f"_{index}" for index, token in enumerate(self._tokens[:-1])) + " "
        )

    def expression(self) -> str:
        """Return the expression for `DataFrame.query`.

        Raises:
            InvalidArgumentError: The condition has an error.
        """
        try:
            return self._joined(ast.parse(self._source.strip(), mode="eval").body)
        except SyntaxError as error:
            token = self._at(error.offset - 1 if error.offset else len(self._source))
            is_open = token.kind == "sign" and token.content in "(["
            why = "this parenthesis is not closed" if is_open else _RULE
            quotes = "; as text, this word is written in quotes" if token.kind == "keyword" else ""
            self._refuse(token, why + quotes)

    def _split(self) -> Iterator[Token]:
        odd = [re.escape(name) for name in sorted(self._runs, key=len, reverse=True) if not name.isidentifier()]
        # a name may have parentheses, such as loss (hyperparameter)
        names = rf"(?P<name>`[^`]*`|(?:{'|'.join(odd) or '(?!)'})(?!{_LETTER}))"
        pattern = re.compile(rf"\s*(?:{names}|{_TOKEN})", re.DOTALL | re.VERBOSE | re.IGNORECASE)
        offset = 0
        while rest := self._where[offset:].strip():
            match = pattern.match(self._where, offset)
            if not match:
                begin = self._where.index(rest[0], offset)
                why = "this quote is not closed" if rest[0] in "\"'`" else f"unexpected {rest[0]!r}"
                self._refuse(Token("", rest[0], begin, begin + 1), why)
            kind, offset = match.lastgroup or "", match.end()
            content = " ".join(match[kind].split()) if kind == "words" else match[kind]
            if kind == "quoted":
                content = re.sub(r"\\(.)", r"\1", content[1:-1], flags=re.DOTALL)
            elif kind == "name" and content not in self._runs:
                content = content.strip("`")
            yield Token(kind, content, match.start(kind), offset)
        yield Token("end", "", len(self._where), len(self._where) + 1)

    def _joined(self, node: ast.expr) -> str:
        if isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            return f"({word.join(map(self._joined, node.values))})"
        if isinstance(node, ast.UnaryOp):  # `not` is the only unary operator
            return f"(not {self._joined(node.operand)})"
        if not isinstance(node, ast.Compare):
            self._refuse_name(node)
        sides = [node.left, *node.comparators]
        return f"({' and '.join(map(self._compared, sides, node.ops, node.comparators))})"

    def _compared(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> str:
        order = _ORDER.get(type(sign))
        # the column is on the right, as in 0.1>lr
        if order and self._is_column(right) and as_number(self._token(left).content) is not None:
            left, right, order = right, left, order.translate(str.maketrans("<>", "><"))
        if not self._is_column(left):
            self._refuse_name(left)
        name, other = self._token(left).content, self._token(right)
        kinds = self._kinds(name)
        are_names = other.kind == "name" or (other.kind == "words" and kinds == {"numbers"})
        if self._is_column(right) and are_names:
            kind = ("numbers" if "numbers" in kinds else "text") if order else ""
            columns = [self._column(each, kind) for each in (name, other.content)]
            return (order or ("==" if isinstance(sign, _EQUAL) else "!=")).join(columns)
        if order:
            value = self._readings(right)[0]
            if kinds and _kind(value) not in kinds & {"numbers", "text"}:
                self._refuse_value(name, other)
            return f"{self._column(name, _kind(value))} {order} {self._value(value)}"
        is_list = isinstance(sign, ast.In | ast.NotIn)
        nodes = right.elts if is_list and isinstance(right, ast.Tuple | ast.List) else [right]
        values = [_plain(value) for node in nodes for value in self._fitting(name, node)]
        return f"{self._column(name)} {'in' if isinstance(sign, _EQUAL) else 'not in'} {self._value(values)}"

    def _fitting(self, name: str, node: ast.expr) -> list[Any]:
        """Return the possible values of a token that fit the types in a column.

        Refuse a token without such a value.
        """
        token, readings, kinds = self._token(node), self._readings(node), self._kinds(name)
        if name == "status" and not {*map(str, Status), *map(str, self._runs[name])} & set(readings):
            hint = did_you_mean(token.content, Status, "the statuses are")
            self._refuse(token, f"no status is {token.content!r}; {hint}")
        fitting = [value for value in readings if _kind(value) in kinds | {"nothing"}]
        if kinds and not fitting:
            self._refuse_value(name, token)
        return fitting

    def _readings(self, node: ast.expr) -> list[Any]:
        token = self._token(node)
        if isinstance(node, ast.Name):
            return token.readings
        end = self._at((node.end_col_offset or 1) - 1).end
        try:  # a tuple or list in the form of a table, such as (0.9, 0.99) or [64, 64]
            return [text(ast.literal_eval(self._where[token.begin : end]))]
        except (ValueError, SyntaxError):
            self._refuse(token, "expected one value; several need in, as lr in (1, 2), and text needs quotes")

    def _kinds(self, name: str) -> set[str]:
        kinds = set(map(_kind, self._runs[name])) - {"nothing"}
        return kinds | {"text"} if "other values" in kinds else kinds

    def _column(self, name: str, kind: str = "") -> str:
        """Add a column for the comparison and return its placeholder; values of another kind become NaN."""
        code = f"c{len(self.columns)}"
        values = self._runs[name]
        self.columns[code] = [_plain(value) if kind in ("", _kind(value)) else math.nan for value in values]
        return code

    def _value(self, value: Any) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f"@{name}"

    def _is_column(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and self._token(node).content in self._runs

    def _token(self, node: ast.expr) -> Token:
        return self._at(node.col_offset)

    def _at(self, offset: int) -> Token:
        return self._tokens[min(self._source[:offset].count(" "), len(self._tokens) - 1)]

    def _refuse_name(self, node: ast.expr) -> NoReturn:
        token = self._token(node)
        if not isinstance(node, ast.Name):
            self._refuse(token, f"{_RULE}; nothing is called. The columns are: {listed(self._runs)}")
        if token.content in self._runs:
            self._refuse(token, f"compare {token.content!r} with a value, as {token.content}=1")
        if token.kind == "words" and as_number(token.content) is not None:
            self._refuse(token, "a comparison begins with the name of a column, as lr<0.1")
        hint = did_you_mean(token.content, self._runs)
        self._refuse(token, f"these runs have no column {token.content!r}; {hint}")

    def _refuse_value(self, name: str, token: Token) -> NoReturn:
        present = [value for value in self._runs[name] if _kind(value) != "nothing"]
        holds = " and ".join(sorted(set(map(_kind, present))))
        examples = listed(dict.fromkeys(map(text, present)), 3)
        rule = "; a value in quotes is text" if token.kind == "quoted" else ""
        self._refuse(token, f"column {name!r} holds {holds}, as {examples}{rule}")

    def _refuse(self, token: Token, why: str) -> NoReturn:
        before = printable(self._where[: token.begin])
        width = max(cell_len(printable(self._where[token.begin : token.end])), 1)
        lines = [printable(why), f"  {printable(self._where)}", f"  {' ' * cell_len(before)}{'^' * width}"]
        raise InvalidArgumentError(["where: " + "\n".join(lines)])


def _is_missing(value: Any) -> bool:
    return (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NAType", "NaTType")


def _plain(value: Any) -> Any:
    """Return a number unchanged, NaN for a missing value, and the text in a table for any other value."""
    return math.nan if _is_missing(value) else value if _kind(value) == "numbers" else text(value)


def _kind(value: Any) -> str:
    if value is None or _is_missing(value):
        return "nothing"
    if isinstance(value, bool):
        return "booleans"
    return "numbers" if isinstance(value, int | float) else "text" if isinstance(value, str) else "other values"
