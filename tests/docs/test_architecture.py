import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = PAGE[PAGE.index("runmanager/\n") : PAGE.index("```", PAGE.index("runmanager/\n"))]
CHANGES = re.findall(r"^\| .+ \| `(runmanager/.+)` \|$", PAGE, flags=re.MULTILINE)
MODULES = [path for path in (HOME / "runmanager").rglob("*.py") if path.name != "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(HOME)))
def test_the_drawn_house_has_every_module_in_its_folder(path):
    folder = path.relative_to(HOME / "runmanager").parts[0]
    begin = TREE.index(f"\n  {folder}")
    entry = re.split(r"\n  (?! )", TREE[begin + 1 :])[0]

    assert re.search(rf"\b{path.stem}\b", entry)


def test_25_likely_changes_have_a_file_that_is_there():
    assert len(CHANGES) == len(set(CHANGES)) == 25
    assert [file for file in CHANGES if not (HOME / file).is_file()] == []
