"""The confusion matrices of runs, as their event files have them."""

import base64
from pathlib import Path

_TAG = b"visuals/confusion_"


def confusion_matrices(folder: Path) -> dict[str, str]:
    """Return the last confusion matrix of each evaluation of a run, as addresses that hold the picture.

    A file that cannot be read has none.
    """
    if next(folder.glob("events.out.tfevents.*"), None) is None:
        return {}
    from runmanager.board import archive  # takes long

    pictures: dict[str, str] = {}
    for path in archive.event_files(folder):
        try:
            with archive.mapped(path) as contents:
                if contents.find(_TAG) < 0:  # most files: reading every event takes long
                    continue
            for event in archive.read(path):
                for value in event.summary.value:
                    if value.tag.encode().startswith(_TAG) and value.image.encoded_image_string:
                        written = base64.b64encode(value.image.encoded_image_string).decode()
                        pictures[value.tag[len(_TAG) :]] = f"data:image/png;base64,{written}"
        except (OSError, ValueError):
            continue
    return pictures
