"""Tables as HTML, Markdown and LaTeX, with all text escaped."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

Rows = Sequence[Sequence[str]]

_BAR = "rgba(84, 137, 214, 0.32)"  # text on this color is readable on white and on black pages
_PALETTE = {
    "✓": ("green", "#2e9e4f"),
    "✗": ("red", "#e5534b"),
    "!": ("yellow", "#c88a04"),
    "…": ("cyan", "#2f93c8"),
}
"""The colors of signs in a terminal and on a page. Page colors have a contrast of 3:1 on white and on black."""

_CELL = "white-space: nowrap; max-width: 26em; overflow: hidden; text-overflow: ellipsis"
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "…": r"\ldots{}", "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip


def sign_color(sign: str, *, is_page: bool = False) -> str:
    """Return the color of a sign; "" for a sign without a color."""
    return _PALETTE.get(sign, ("", ""))[is_page]


def signed(content: str, sign: str, style: str = "") -> str:
    """Return text as HTML in the color of a sign."""
    hue = sign_color(sign, is_page=True)
    style = "; ".join(filter(None, [f"color: {hue}" if hue else "", style]))
    return f'<span style="{style}">{escape(content)}</span>' if style else escape(content)


def html(
    names: Sequence[str],
    rows: Rows,
    is_left: Sequence[bool],
    best: Collection[int],
    bars: Mapping[int, Sequence[float]],
    signs: tuple[int, Sequence[tuple[str, str]]],
) -> str:
    """Return a table as HTML for a notebook, with colors for light and dark pages, and without scripts."""
    aligned = ["left" if each else "right" for each in is_left]
    heads = (
        f'<th style="text-align: {side}">{escape(name)}</th>' for side, name in zip(aligned, names, strict=True)
    )
    body = []
    for number, row in enumerate(rows):
        cells = []
        for index, content in enumerate(row):
            style = f"text-align: {aligned[index]}; {_CELL}"
            style += "; font-weight: bold" if number in best else ""
            share = bars[index][number] if index in bars else 0.0
            if share:
                end = f"{100 * share:.0f}%"
                style += f"; background: linear-gradient(90deg, {_BAR} {end}, transparent {end})"
            sign, hint = signs[1][number] if index == signs[0] else ("", "")
            front = f"{signed(sign, sign, 'font-weight: bold')} " if sign else ""
            cells.append(f'<td style="{style}" title="{escape(hint or content)}">{front}{escape(content)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>\n")
    head = f"<thead><tr>{''.join(heads)}</tr>\n</thead>"
    table = f'<table class="dataframe">\n{head}\n<tbody>{"".join(body)}</tbody></table>'
    return f'<div style="overflow-x: auto">{table}</div>'


def marked(line: str) -> str:
    """Return a line of text as HTML, with its leading sign in color.

    >>> marked("! 1 < 2")
    '<span style="color: #c88a04">!</span> 1 &lt; 2'
    """
    return f"{signed(line[:1], line[:1])}{escape(line[1:])}"


def markdown(names: Sequence[str], rows: Rows, is_left: Sequence[bool], best: Collection[int]) -> str:
    """Return a table as Markdown, with the rows `best` in bold."""
    text = [[_markdown(name) for name in names], ["---" if each else "---:" for each in is_left]]
    for number, row in enumerate(rows):
        cells = map(_markdown, row)
        text.append([f"**{each}**" if number in best and each else each for each in cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in text)


def latex(names: Sequence[str], rows: Rows, is_left: Sequence[bool], best: Collection[int] = ()) -> str:
    r"""Return a table as LaTeX for the package booktabs, with the rows `best` in bold.

    >>> print(latex(["run", "net_kind"], [["1", "50 %"]], [False, True]))
    \begin{tabular}{rl}
    \toprule
    run & net\_kind \\
    \midrule
    1 & 50 \% \\
    \bottomrule
    \end{tabular}
    """
    lines = [f"\\begin{{tabular}}{{{''.join('l' if each else 'r' for each in is_left)}}}", r"\toprule"]
    lines += [_latex_row(map(_latex, names)), r"\midrule"]
    for number, row in enumerate(rows):
        cells = map(_latex, row)
        lines.append(_latex_row(f"\\textbf{{{each}}}" if number in best and each else each for each in cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex(content: str) -> str:
    escaped = "".join(_LATEX.get(sign, sign) for sign in content)
    # otherwise LaTeX takes the text for an argument of the preceding \\
    return f"{{}}{escaped}" if escaped.startswith("[") else escaped


def _markdown(content: str) -> str:
    r"""Escape characters that are markup in Markdown, or in HTML inside Markdown.

    >>> _markdown("a|b_c <i>")
    'a\\|b\\_c &lt;i>'
    """
    escaped = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", content)
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
