import importlib.util
import sys

import pytest


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a text as a module of the user's, and return it."""
    number = 0

    def import_(code, name="experiment"):
        nonlocal number
        number += 1
        path = tmp_path / str(number) / f"{name}.py"
        path.parent.mkdir()
        path.write_text(code)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded)
        spec.loader.exec_module(loaded)
        return loaded

    return import_
