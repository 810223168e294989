"""`python -m runmanager`: the `runmanager` command."""

from runmanager.cli.app import app

if __name__ == "__main__":
    app()
