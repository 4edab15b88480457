"""``eager``: runs the captured graph as it is, for telling capture's bugs from the compiler's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def eager(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return the captured graph's own forward function."""
    del example_inputs
    return gm.forward  # type: ignore[no-any-return]
