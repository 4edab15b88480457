"""PyTorch's loggers; ``tests/test_tracing.py`` has its structured trace."""

import logging

import torch
from torch._logging._internal import trace_log

from dovetail import errors
from dovetail.capture._torch.aot_autograd import aot_autograd, boxed
from dovetail.capture._torch.logs import hide_traceback, skip_unread_text
from dovetail.capture._torch.partition import min_cut_partition


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


def train():
    def compiler(gm, inputs):
        return boxed(lambda args: gm(*args))

    aot = aot_autograd(fw_compiler=compiler, partition_fn=min_cut_partition)
    torch._dynamo.reset()
    torch.compile(lambda x: x.sin() * 2, backend=aot)(torch.ones(3, requires_grad=True))


def test_training_graphs_are_text_for_readers_alone(monkeypatch):
    skip_unread_text()
    written = []
    real = torch.fx.GraphModule.print_readable

    def noted(self, *args, **kwargs):
        written.append(self)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", noted)
    monkeypatch.setattr(trace_log, "handlers", [])
    train()
    assert not written
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(list(record.metadata))
    monkeypatch.setattr(trace_log, "handlers", [handler])
    train()
    for name in ("aot_joint_graph", "aot_forward_graph", "aot_backward_graph"):
        assert any(name in keys for keys in seen), name
