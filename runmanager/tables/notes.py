"""Notes on experiments and runs: how long they may be, and their first lines."""

from runmanager.errors import InvalidArgumentError

LONGEST_NOTE = 1000
"""The maximum number of characters of a note."""


def check_note(note: object) -> str:
    """Return a note without the space around it and at the ends of its lines."""
    if not isinstance(note, str):
        raise InvalidArgumentError(f"a note must be text, got {note!r:.60}")
    lines = "\n".join(line.expandtabs(4).rstrip() for line in note.strip().splitlines())
    if len(lines) > LONGEST_NOTE:
        raise InvalidArgumentError(
            f"a note has at most {LONGEST_NOTE} characters, this one has {len(lines):,}: "
            "put it into a file, and name that"
        )
    return lines


def first_line_of_note(note: str | None) -> str:
    """Return the first line of a note, for screens with one line for it; "" without a note."""
    return (note or "").partition("\n")[0]
