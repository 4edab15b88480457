"""PyTorch's structured trace and its loggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Add a text to PyTorch's structured trace (``TORCH_TRACE``), read by tlparse."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "string"},
        payload_fn=text,
    )


def hide_traceback(cause: type[Exception]) -> None:
    """Keep PyTorch from logging a traceback where an entry is not read because of this error."""
    import logging

    logger = logging.getLogger("torch._dynamo.package")
    if not any(isinstance(each, _Hides) and each.cause is cause for each in logger.filters):
        logger.addFilter(_Hides(cause))


class _Hides:
    """A filter of log records: drops those that tell of one class of errors."""

    def __init__(self, cause: type[Exception]) -> None:
        self.cause = cause

    def filter(self, record: Any) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, self.cause):
            error = error.__cause__
        return error is None
