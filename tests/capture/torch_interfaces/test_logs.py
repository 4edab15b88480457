"""PyTorch's loggers; ``tests/test_tracing.py`` has its structured trace."""

import logging

from dovetail import errors
from dovetail.capture._torch.logs import hide_traceback


def test_tracebacks_are_hidden():
    logger = logging.getLogger("torch._dynamo.package")
    for _ in range(2):
        hide_traceback(errors.NotRestored)
    kept = [each for each in logger.filters if getattr(each, "cause", None) is errors.NotRestored]
    assert len(kept) == 1
    for cause, is_shown in ((errors.NotRestored("ours"), False), (ValueError("others'"), True)):
        error = RuntimeError("on the way")
        error.__cause__ = cause
        info = (RuntimeError, error, None)
        record = logging.LogRecord("torch", logging.WARNING, "", 1, "Failed to load", (), info)
        assert bool(logger.filter(record)) is is_shown
