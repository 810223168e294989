"""The list of skipped tests at the end of CI."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "skips.py"
FILE = """<testsuites><testsuite>
<testcase name="a"><skipped type="pytest.skip" message="strace is not installed">a.py:1</skipped></testcase>
<testcase name="b"/>
<testcase name="c"><skipped type="pytest.skip" message="{}">b.py:1</skipped></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("reason", "code", "line"),
    [
        ("strace does not work here: EPERM", 0, "    1 default: strace does not work here: EPERM"),
        ("could not import 'ray'", 1, "!   1 default: could not import 'ray'"),
    ],
)
def test_a_skip_that_this_machine_does_not_explain_fails(tmp_path, monkeypatch, capsys, reason, code, line):
    (tmp_path / "default.xml").write_text(FILE.format(reason))

    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "default.xml")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")

    printed = capsys.readouterr().out
    assert ended.value.code == code
    assert f"2 tests were skipped, {code} for an unexpected reason" in printed
    assert line in printed.splitlines()
