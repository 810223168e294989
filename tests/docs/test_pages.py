"""README.md and the pages under docs/: their programs run, their links lead somewhere, README stays short."""

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import runmanager
from tests.nightly import of_night, of_night_but

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
OTHERS = [
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "runs" / "README.md",
]

FENCE = re.compile(
    r"(?P<slow><!-- run by the slow tests: [^\n]+ -->\n)?"
    r"^```(?P<language>\w*)\n(?P<content>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\]\((?!https?://)(?P<file>[^)#]*)#?(?P<anchor>[^)]*)\)")


def blocks(page: Path, language: str, *, slow: bool = False) -> list[str]:
    """Return the blocks of a page in a language; slow ones on demand."""
    fences = FENCE.finditer(page.read_text())
    return [each["content"] for each in fences if each["language"] == language and (slow or not each["slow"])]


PROGRAMS = [page for page in PAGES if blocks(page, "python", slow=True)]
PROGRAMS_BY_DAY = [page for page in PROGRAMS if page.stem != "trainers"]  # whose tests say it by day


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return FENCE.sub("", page.read_text())


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", of_night_but(PROGRAMS, PROGRAMS_BY_DAY), ids=name_of)
def test_the_python_blocks_of_a_page_run_one_after_the_other_and_stay_unchanged(warm, page, tmp_path):
    content = blocks(page, "python", slow=True)
    program = tmp_path / "program.py"
    program.write_text("\n".join(content))

    is_quick = content == blocks(page, "python")
    if is_quick:
        done = warm.execute(program, forks_lanes=True)
    else:
        command = [sys.executable, program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    for _ in range(of_night(2, by_day=int(page.stem == "verdict")) if is_quick else 0):
        again = warm.execute(program, forks_lanes=True)  # what a page asserts may hold at its first start alone
        said = [line for line in again.stdout.splitlines() if line.startswith("!") and "changed" in line]
        assert said == []


def test_the_readme_is_short():
    lines = README.read_text().splitlines()
    text = re.sub(r"\]\([^)]*\)", "]", prose(README))
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("#", "|")))
    sentences = re.split(r"(?<=[.?:!;])\s+|\n\s*\n|\n- ", text)

    assert len(lines) <= 130
    assert [sentence for sentence in sentences if len(sentence.split()) > 20] == []
    assert [block.count("\n") for block in blocks(README, "console")] == [1, 1, 1]


@pytest.mark.parametrize("page", [README, *PAGES, *OTHERS], ids=name_of)
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(page):
    for link in LINK.finditer(prose(page)):
        target = page.parent / link["file"] if link["file"] else page

        assert target.exists(), link[0]
        if link["anchor"]:
            headings = re.findall(r"^#+ (.+)", target.read_text(), flags=re.MULTILINE)
            assert link["anchor"] in [heading.lower().replace(" ", "-") for heading in headings], link[0]


def test_every_page_is_in_the_navigation_of_the_site_once():
    tree = ast.parse((ROOT / "docs" / "conf.py").read_text())
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAVIGATION"
    ]
    entries = [entry for entries in ast.literal_eval(value).values() for entry in entries]
    pages = [re.sub(r".*<(.*)>", r"\1", entry)[1:] + ".md" for entry in entries]

    assert sorted(pages) == sorted([*map(name_of, [*PAGES, *OTHERS[:-1]]), "docs/api/index.md"])


def test_every_page_begins_with_a_program_and_is_linked_from_the_readme():
    links = {link["file"] for link in LINK.finditer(README.read_text())}
    without = [page for page in PAGES if not FENCE.search(page.read_text())]
    late = [page for page in PAGES if FENCE.split(page.read_text())[0].count("\n") > 20]

    assert without == late == []
    assert {name_of(page) for page in PAGES} <= links


def test_half_of_the_sentences_have_at_most_twenty_words_and_none_has_more_than_forty():
    for page in [README, *PAGES, *OTHERS[1:3]]:
        text = re.sub(r"`[^`]*`", "word", re.sub(r"\]\([^)]*\)", "]", prose(page)))
        sentences = re.split(r"(?<=[.?!:;])\s+|\n\s*\n|\n- |\|", text)
        lengths = [len(sentence.split()) for sentence in sentences if len(sentence.split()) > 2]

        assert statistics.median(lengths) <= 20, page
        assert max(lengths) <= 40, max(sentences, key=lambda sentence: len(sentence.split()))


def test_ci_runs_the_commands_that_the_readme_names():
    script, readme = (ROOT / ".ci" / "run").read_text(), README.read_text()

    for command in ("python experiments/fashion_grid.py", "pytest -n 2 --dist worksteal"):
        assert f"{command}\n" in readme
        assert f"\n{command} -" in script


def test_the_page_of_public_names_lists_each_of_them_once_and_nothing_else():
    page = (ROOT / "docs" / "public-api.md").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == runmanager.__all__


# Architecture

HOUSE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = HOUSE[HOUSE.index("runmanager/\n") : HOUSE.index("```", HOUSE.index("runmanager/\n"))]
CHANGES = re.findall(r"^\| .+ \| `(runmanager/.+)` \| `(\w+)` \|$", HOUSE, flags=re.MULTILINE)


def test_the_drawn_house_has_every_folder():
    folders = {path.parent.name for path in (ROOT / "runmanager").glob("*/__init__.py")}

    assert folders == set(re.findall(r"^  (\w+)/ ", TREE, flags=re.MULTILINE))


def test_25_likely_changes_have_a_file_with_the_name_to_look_for():
    def names_in(file):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
        return {getattr(node, "name", getattr(node, "id", "")) for node in [*tree.body, *targets]}

    assert len({file for file, _ in CHANGES}) == len(CHANGES) >= 25
    assert HOUSE.count("| `runmanager/") == len(CHANGES)
    assert [file for file, name in CHANGES if name not in names_in(file)] == []
