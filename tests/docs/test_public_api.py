import re
from pathlib import Path

import runmanager

PAGE = Path(__file__).parents[2] / "docs" / "public-api.md"


def test_the_page_of_public_names_lists_each_of_them_once_and_nothing_else():
    names = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert sorted(names) == runmanager.__all__
