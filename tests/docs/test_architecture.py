import ast
import re
from pathlib import Path

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = PAGE[PAGE.index("runmanager/\n") : PAGE.index("```", PAGE.index("runmanager/\n"))]
CHANGES = re.findall(r"^\| .+ \| `(runmanager/.+)` \| `(\w+)` \|$", PAGE, flags=re.MULTILINE)


def test_the_drawn_house_has_every_folder():
    folders = {path.parent.name for path in (HOME / "runmanager").glob("*/__init__.py")}

    assert folders == set(re.findall(r"^  (\w+)/ ", TREE, flags=re.MULTILINE))


def test_25_likely_changes_have_a_file_with_the_name_to_look_for():
    def names_in(file):
        tree = ast.parse((HOME / file).read_text(encoding="utf-8"))
        targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
        return {getattr(node, "name", getattr(node, "id", "")) for node in [*tree.body, *targets]}

    assert len({file for file, _ in CHANGES}) == len(CHANGES) >= 25
    assert PAGE.count("| `runmanager/") == len(CHANGES)
    assert [file for file, name in CHANGES if name not in names_in(file)] == []
