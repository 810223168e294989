"""How Sphinx makes the site of README.md and the other pages, which stay plain Markdown.

The source folder is the repository, so that every relative link works here as on a repository host:
`sphinx-build -W -c docs . build/site`. Navigation and the reference of the public names are added while pages
are read.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

import runmanager

project, author, copyright = "runmanager", "The runmanager authors", "The runmanager authors"  # noqa: A001
release = version = runmanager.__version__
root_doc = "README"

HERE = Path(__file__).parent
PAGES = re.compile(r"\[([^]]*)\]\(((?:\.\./)?)experiments/pages\.py\)")
NAME = re.compile(r"^\| `(\w+)` \|(?! of runmanager)", re.MULTILINE)

NAVIGATION = {
    "README": [
        "Start </docs/quickstart>", "Guides </docs/training-function>", "Reference </docs/public-api>",
        "Project </docs/architecture>",
    ],
    "docs/quickstart": [
        "/docs/from-the-tutorial", "/docs/cpu-or-gpu", "/docs/unchanged", "/docs/your-script",
        "/docs/compared",
    ],
    "docs/training-function": [
        "/docs/fit", "/docs/trainers", "/docs/grids", "/docs/devices-and-outcomes", "/docs/clusters",
        "/docs/resuming", "/docs/debugging", "/docs/choosing", "/docs/verdict", "/docs/report",
        "/docs/tensorboard", "/docs/extending",
    ],
    "docs/public-api": ["/docs/results", "/docs/command-line", "/docs/api/index"],
    "docs/architecture": ["/benchmarks/README", "/CONTRIBUTING", "/SECURITY", "/CHANGELOG"],
}  # fmt: skip
"""Page -> the pages below it, with the title in the header where it differs."""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
include_patterns = ["*.md", "docs/*.md", "docs/api/*.rst", "benchmarks/README.md"]
exclude_patterns = [".*", "build", "data", "runs", "tests", "runmanager"]

myst_heading_anchors = 4
myst_links_external_new_tab = True
autosummary_generate = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
default_role = "code"  # single backticks in docstrings
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "runmanager"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "navbar_align": "left",
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def list_names(_app: Sphinx, _config: object) -> None:
    """Write docs/api/index.rst, from which autosummary makes a page for each public name."""
    page = (HERE / "public-api.md").read_text(encoding="utf-8")
    lines = [
        "Details of all public names",
        "===========================",
        "",
        ".. currentmodule:: runmanager",
        "",
    ]
    for title, *rest in (part.splitlines() for part in page.split("\n## ")[1:]):
        if names := [f"   {name}" for name in NAME.findall("\n".join(rest))]:
            lines += [
                title,
                "-" * len(title),
                "",
                ".. autosummary::",
                "   :toctree: .",
                "   :nosignatures:",
                "",
                *names,
                "",
            ]
    (HERE / "api").mkdir(exist_ok=True)
    (HERE / "api" / "index.rst").write_text("\n".join(lines), encoding="utf-8")


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add what a repository host would not show: navigation, details of names, and the pages of pages.py."""
    if app.config.html_extra_path:
        source[0] = PAGES.sub(r'<a href="\2fashion/index.html">\1</a>', source[0])
    if name.startswith("docs/api/runmanager."):  # what autosummary wrote
        source[0] = source[0].replace("runmanager.", "", 1).replace(".. automethod:: __init__", "")
    if name == "docs/public-api":
        source[0] = NAME.sub(r"| [`\1`](api/runmanager.\1.rst) |", source[0])
    if name in NAVIGATION:
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *NAVIGATION[name], "```", ""])


def leave_out_private_arguments(*given: object) -> tuple[str, object] | None:
    """Return a signature without the arguments that begin with an underscore, None to keep it."""
    *_, signature, result = given
    return (re.sub(r", _\w+=[^,)]*", "", signature), result) if isinstance(signature, str) else None


def lead_to_the_first_page(app: Sphinx, error: Exception | None) -> None:
    """Write an index.html, which web servers look for."""
    if error is None:
        page = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=README.html">'
        (Path(app.outdir) / "index.html").write_text(f'{page}<a href="README.html">runmanager</a>\n')


def setup(app: Sphinx) -> None:
    """Connect the functions."""
    app.connect("config-inited", list_names)
    app.connect("source-read", complete)
    app.connect("autodoc-process-signature", leave_out_private_arguments)
    app.connect("build-finished", lead_to_the_first_page)
