import pytest


def test_a_report_is_written_where_it_is_wanted(command, root, tmp_path):
    target = tmp_path / "report.html"

    result = command("report", root / "grid", "-o", target)

    assert result.exit_code == 0
    assert result.stderr == f"{target} is written: open it in a browser\n"
    assert "is best: test_accuracy" in target.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["{root}/nothing"], 2, "no results at"),
        (["{root}", "--by", "f1"], 2, "'f1' is no column of these runs"),
        (["{root}", "-o", "{root}/missing/report.html"], 74, "cannot write (No such file or directory)"),
    ],
)
def test_a_report_that_cannot_be_written_says_why(command, root, arguments, code, problem):
    result = command("report", *(argument.format(root=root) for argument in arguments))

    assert result.exit_code == code
    assert problem in result.stderr
    assert "Traceback" not in result.output
