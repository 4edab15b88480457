"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import CannotWrite


def write_text(path: str, text: str) -> None:
    """Write a file of text; CannotWrite, in one line, where the system does not let us."""
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise CannotWrite(f"cannot write {path!r}: {error.strerror or error}") from None
