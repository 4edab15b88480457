"""Numbers on the command line."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number from 0 on."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return value
