"""``--mode``: what ``torch.compile`` calls a mode, as options of a command's compilation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from dovetail.options import MODES

mode_option = click.option(
    "--mode",
    type=click.Choice([*MODES]),
    help="As torch.compile has them; max-autotune measures candidates and remembers the fastest.",
)


def mode_options(mode: str | None) -> Mapping[str, Any]:
    """The options of a mode."""
    return MODES[mode or "default"]
