import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_blocks_of_the_readme_run_one_after_the_other(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    program = tmp_path / "blocks.py"
    program.write_text("\n".join(blocks))

    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert len(blocks) >= 3
    assert done.returncode == 0, done.stderr


def test_every_relative_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)

    missing = [link for link in links if not (ROOT / link).exists()]

    assert missing == []


def test_ci_runs_the_commands_that_the_readme_names():
    script = (ROOT / ".ci" / "run").read_text()

    for command in ("python experiments/fashion_grid.py", "pytest"):
        assert command in README
        assert command in script
