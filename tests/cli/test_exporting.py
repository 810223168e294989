import json

import pandas as pd
import pytest

from runmanager import load_results, load_runs, load_table
from runmanager.integrations import mlflow
from tests.report.reading import by_id, parse, text_of, write_runs


def test_a_report_is_written_where_it_is_wanted(command, root, tmp_path):
    target = tmp_path / "report.html"

    result = command("report", root / "grid", "-o", target)

    assert result.exit_code == 0
    assert result.stderr == f"{target} is written: open it in a browser\n"
    assert "Run 1 (lr=0.1) and run 2 (lr=0.01) are best: test_accuracy" in target.read_text()


def test_a_report_of_the_working_directory_is_named_with_its_folder(command, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    result = command("report", root / "grid")

    assert result.stderr == f"{tmp_path / 'report.html'} is written: open it in a browser\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["{root}/nothing"], 2, "no results at"),
        (["{root}", "--goal", "f1"], 2, "these runs have no column 'f1'"),
        (["{root}", "-o", "{root}/missing/report.html"], 2, "no folder '{root}/missing'"),
        (["{root}", "-o", "{root}/nothing/x/report.html"], 2, "no folder '{root}/nothing/x': make it first"),
        (["{root}", "-o", "{root}"], 74, "cannot write"),
    ],
)
def test_a_report_that_cannot_be_written_says_why(command, root, arguments, code, problem):
    result = command("report", *(argument.format(root=root) for argument in arguments))

    assert result.exit_code == code
    assert problem.format(root=root) in result.stderr
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
        (["--csv", "/dev/null/runs.csv"], 2, "no folder '/dev/null'"),
    ],
)
def test_an_export_that_cannot_be_done_says_why(command, root, arguments, code, problem):
    result = command("export", root, *arguments)

    assert result.exit_code == code
    assert problem in result.stderr
    assert "Traceback" not in result.output


def test_an_export_to_mlflow_says_that_changed_runs_are_replaced(command, root, monkeypatch):
    monkeypatch.setattr(mlflow, "export_mlflow", lambda _, tracking_uri: [tracking_uri])

    result = command("export", root, "--mlflow", "sqlite:///mlflow.db")

    assert result.exit_code == 0
    assert result.stderr == (
        "sqlite:///mlflow.db: 1 run logged; each replaces its earlier export, "
        "runs that have not changed are not logged again\n"
    )


@pytest.mark.parametrize("flags", [[], ["--epochs"]])
def test_nothing_is_exported_of_a_folder_without_runs(command, tmp_path, flags):
    result = command("export", tmp_path, "--csv", tmp_path / "runs.csv", *flags)

    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert f"under {tmp_path}: start a grid first" in result.stderr


def test_which_values_of_a_metric_are_good_can_be_told(command, tmp_path):
    write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])
    target = tmp_path / "report.html"

    refused = command("best", tmp_path / "grid", "--goal", "lr")
    best = command("best", tmp_path / "grid", "--goal", "min:lr", "--json")
    written = command("report", tmp_path / "grid", "--goal", "min:test_accuracy", "-o", target)

    assert (refused.exit_code, best.exit_code, written.exit_code) == (2, 0, 0)
    assert "write goal='max:lr' or goal='min:lr'" in refused.stderr
    assert [row["lr"] for row in json.loads(best.stdout)] == [0.1, 0.2]
    assert "Run 1 (lr=0.1) is best: test_accuracy 0.1" in target.read_text()


def test_a_duration_to_judge_by_is_one_column_of_the_page(command, tmp_path):
    write_runs(tmp_path / "grid", [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])

    command("report", tmp_path / "grid", "--goal", "epoch duration", "-o", tmp_path / "report.html")

    table = by_id(parse(tmp_path / "report.html"), "runs")
    headings = [text_of(heading) for heading in table.iter("th") if heading.get("scope") == "col"]
    assert headings.count("epoch duration") == 1


def test_several_experiments_are_set_side_by_side(command, tmp_path):
    for name in ("before", "after"):
        write_runs(tmp_path / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])
    target = tmp_path / "report.html"

    written = command("report", tmp_path / "before", tmp_path / "after", "-o", target)

    assert written.exit_code == 0
    assert "whatnamebeforeafterdifference" in text_of(by_id(parse(target), "differences"))
