"""README.md and the pages under docs/: their programs run, their links lead somewhere, README stays short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
OTHERS = [ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md", ROOT / "runs" / "README.md"]

FENCE = re.compile(
    r"(?P<skip><!-- not run by the tests: [^\n]+ -->\n)?^```(?P<language>\w*)\n(?P<content>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\]\((?!https?://)(?P<file>[^)#]*)#?(?P<anchor>[^)]*)\)")
DURATIONS = {7, 8}  # columns of README's table


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in a language, without those that say that they are not run."""
    fences = FENCE.finditer(page.read_text())
    return [fence["content"] for fence in fences if fence["language"] == language and not fence["skip"]]


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return FENCE.sub("", page.read_text())


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_durations(row: list[str]) -> list[float]:
    return [float(cell) for number, cell in enumerate(row) if number not in DURATIONS]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_python_blocks_of_a_page_run_one_after_the_other(warm, page, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks(page, "python")))

    done = warm.execute(program)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_of_the_readme_prints_the_table_of_the_readme(warm, tmp_path):
    (program,), (table,) = blocks(README, "python"), blocks(README, "text")
    heading, *rows, caption = [re.split("  +", line.strip()) for line in table.splitlines()]
    (tmp_path / "circle.py").write_text(program)

    done = warm.execute(tmp_path / "circle.py")

    assert done.returncode == 0, done.stderr
    lines = [re.split("  +", line.strip()) for line in done.stdout.splitlines()[-len(rows) - 2 :]]
    assert (lines[0], lines[-1]) == (heading, caption)
    for expected, actual in zip(sorted(rows), sorted(lines[1:-1]), strict=True):
        numbers, same = without_durations(actual), without_durations(expected)
        assert numbers == pytest.approx(same, abs=0.02)  # other processors round differently


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


def test_the_readme_leads_to_every_page():
    links = {link["file"] for link in LINK.finditer(README.read_text())}

    assert {name_of(page) for page in PAGES} <= links


def test_ci_runs_the_commands_that_the_readme_names():
    script, readme = (ROOT / ".ci" / "run").read_text(), README.read_text()

    for command in ("python experiments/fashion_grid.py", "pytest -n 2 --dist worksteal"):
        assert f"{command}\n" in readme
        assert f"\n{command} -" in script
