"""PyTorch's structured trace and its loggers."""

from __future__ import annotations

import functools
import logging
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


# Names that TORCH_LOGS takes for Inductor and that mean the same of us.
ARTIFACTS = ("post_grad_graphs", "fusion", "schedule", "output_code", "kernel_code")


def wanted_artifacts() -> frozenset[str]:
    """Those of ``ARTIFACTS`` that ``TORCH_LOGS`` or ``torch._logging.set_logs`` asks for."""
    from torch._logging._internal import log_state

    return frozenset(name for name in ARTIFACTS if log_state.is_artifact_enabled(name))


def log_artifact(name: str, text: str) -> None:
    """Write a text to the log of that name, as PyTorch's own parts do."""
    from torch._logging import getArtifactLogger

    getArtifactLogger("torch.dovetail", name).debug("%s", text)


@functools.cache
def skip_unread_text() -> None:
    """Have AOTAutograd write training graphs as text for readers alone, from now on.

    It does so for its structured trace and its own cache, and for nobody where both are off.
    """
    from torch._functorch._aot_autograd import graph_compile

    for name, nothing in (("_log_joint_graph", None), ("_log_fw_bw_graphs", (None, None))):
        if hasattr(graph_compile, name):  # since 2.13
            setattr(graph_compile, name, _if_read(getattr(graph_compile, name), nothing))


def _if_read(write: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
    """``write``, whose last argument is AOTAutograd's configuration, where somebody reads it."""
    from torch._functorch._aot_autograd import graph_compile
    from torch._logging._internal import trace_log

    loggers = (graph_compile.aot_joint_log, graph_compile.aot_graphs_log)

    @functools.wraps(write)
    def call(*args: Any) -> Any:
        logged = any(logger.isEnabledFor(logging.INFO) for logger in loggers)
        read = trace_log.handlers or logged or args[-1].cache_info is not None
        return write(*args) if read else nothing

    return call


def hide_traceback(cause: type[Exception]) -> None:
    """Keep PyTorch from logging a traceback where an entry is not read because of this error."""
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
