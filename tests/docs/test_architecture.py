import re
from pathlib import Path

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = PAGE[PAGE.index("runmanager/\n") : PAGE.index("```", PAGE.index("runmanager/\n"))]
CHANGES = re.findall(r"^\| .+ \| `(runmanager/.+)` \|$", PAGE, flags=re.MULTILINE)


def test_the_drawn_house_has_every_folder():
    folders = {path.parent.name for path in (HOME / "runmanager").glob("*/__init__.py")}

    assert folders == set(re.findall(r"^  (\w+)/ ", TREE, flags=re.MULTILINE))


def test_25_likely_changes_have_a_file_that_is_there():
    assert len(CHANGES) == len(set(CHANGES)) >= 25
    assert [file for file in CHANGES if not (HOME / file).is_file()] == []
