"""The `runmanager` command."""
