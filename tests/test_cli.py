from typer.testing import CliRunner

from runmanager import RunManager
from runmanager.cli import app
from tests.board.reading import event_files, scalars_in, train


def test_event_files_that_were_lost_are_rebuilt_for_every_experiment(tmp_path):
    for name in ("one", "two"):
        train(RunManager(name, tmp_path, display=False), {"lr": 0.1})
    for path in event_files(tmp_path):
        path.unlink()

    result = CliRunner().invoke(app, ["rebuild-tensorboard", str(tmp_path)])

    assert result.exit_code == 0
    assert result.stdout.count("1 runs rebuilt") == 2
    assert [step for step, _ in scalars_in(tmp_path / "one")["loss/train"]] == [1]


def test_a_folder_that_is_not_there_is_refused_without_a_traceback(tmp_path):
    result = CliRunner().invoke(app, ["rebuild-tensorboard", str(tmp_path / "missing")])

    assert result.exit_code == 2
    assert "Traceback" not in result.output
