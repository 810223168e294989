"""The commands of `runmanager`, by what they do for their user."""
