import subprocess
import sys

from typer.testing import CliRunner

from runmanager import RunManager, speed
from runmanager.cli import app
from runmanager.devices import available_devices
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


def test_the_devices_of_this_machine_are_listed():
    result = CliRunner().invoke(app, ["devices"])

    assert result.exit_code == 0
    for name in available_devices():
        assert f"\n{name} " in result.stdout
    assert "memory_gib" in result.stdout
    assert "times the cpu" not in result.stdout


def test_the_devices_of_this_machine_are_timed_when_asked(monkeypatch):
    monkeypatch.setattr(speed, "_SIZE", 16)
    monkeypatch.setattr(speed, "_BATCH", 4)
    monkeypatch.setattr(speed, "_SHORTEST", 0.001)

    result = CliRunner().invoke(app, ["devices", "--benchmark"])

    assert result.exit_code == 0
    assert "times the cpu" in result.stdout
    assert "training step of 4, fp32" in result.stdout


def test_help_imports_nothing_heavy():
    heavy = ("torch", "tensorboard", "pandas", "numpy")
    program = (
        "import sys\n"
        "from runmanager.cli import app\n"
        "try:\n"
        "    app(['--help'])\n"
        "finally:\n"
        f"    print([name for name in {heavy} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "rebuild-tensorboard" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
