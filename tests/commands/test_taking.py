import pandas as pd
import pytest

from runmanager import load_results, load_runs, load_table


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


@pytest.mark.parametrize(("flags", "load"), [([], load_runs), (["--epochs"], load_results)])
def test_exported_files_come_back_as_they_were(command, root, tmp_path, flags, load):
    csv, json = tmp_path / "table.csv", tmp_path / "table.json"

    result = command("export", root / "grid", "--csv", csv, "--json", json, *flags)

    assert result.exit_code == 0
    for path in (csv, json):
        pd.testing.assert_frame_equal(load_table(path), load(root / "grid"))


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ([], 2, "nothing to export to: give --csv, --json, --parquet, --mlflow or --wandb"),
        (["--csv", "runs.xlsx"], 2, "--csv writes a file that ends in .csv, got 'runs.xlsx'"),
        (["--csv", "/dev/null/runs.csv"], 74, "cannot write"),
    ],
)
def test_an_export_that_cannot_be_done_says_why(command, root, arguments, code, problem):
    result = command("export", root, *arguments)

    assert result.exit_code == code
    assert problem in result.stderr
    assert "Traceback" not in result.output
