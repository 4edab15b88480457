"""Dynamo: errors that pass through it, and what it says of a graph's inputs."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from traceback import FrameSummary
from typing import Any, NamedTuple


def pass_through_dynamo(error: Exception) -> Exception:
    """``error`` as Dynamo lets it through: the user sees our class, not BackendCompilerFailed.

    It is a copy: whoever holds the error itself, a backend's author say, keeps it as it was.
    """
    cls = _let_through(type(error))
    if isinstance(error, cls):
        return error
    copy: Exception = cls.__new__(cls, *error.args)
    copy.__dict__.update(error.__dict__)
    return copy.with_traceback(error.__traceback__)


_classes_let_through: dict[type[Exception], type[Exception]] = {}


def _let_through(cls: type[Exception]) -> type[Exception]:
    """A class of errors that Dynamo does not wrap, of the same name; one for each."""
    from torch._dynamo.exc import ShortenTraceback

    if issubclass(cls, ShortenTraceback):
        return cls
    own = {"__module__": cls.__module__, "__doc__": cls.__doc__, "first_useful_frame": None}
    both = type(cls.__name__, (cls, ShortenTraceback), own)
    return _classes_let_through.setdefault(cls, both)


def trace_recurrent_layers() -> None:
    """Have Dynamo trace nn.LSTM, nn.GRU and nn.RNN, which it leaves to eager by default."""
    import torch._dynamo

    torch._dynamo.config.allow_rnn = True


def input_names(gm: Any) -> list[str]:
    """What a user calls each input of a Dynamo graph: ``0.weight``, or the name in the graph."""
    nodes = gm.graph.find_nodes(op="placeholder")
    sources = [getattr(node.meta.get("grapharg"), "source", None) for node in nodes]
    found = [_module_path(source) for source in sources]
    return [path or node.name for path, node in zip(found, nodes, strict=True)]


def _module_path(source: Any) -> str:
    """The path of a parameter or buffer in its module, from where Dynamo found it."""
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)  # a method before PyTorch 2.10
    return ".".join(re.findall(r"_(?:modules|parameters|buffers)\['([^']+)'\]", text))


def static_kind(node: Any) -> str:
    """How Dynamo marks an input that is the same tensor at every call; empty: it does not."""
    return str((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type") or "")


class GraphBreak(NamedTuple):
    """Where Dynamo ended a graph within a function, and why."""

    reason: str
    frames: tuple[FrameSummary, ...]  # the user's stack, innermost last


Told = Mapping[tuple[str, int], str]  # reasons by file and line


def graph_breaks() -> list[GraphBreak]:
    """Every one that Dynamo has met in this process since it was last reset, in order."""
    from torch._dynamo.output_graph import graph_break_reasons

    return [GraphBreak(each.reason, tuple(each.user_stack)) for each in graph_break_reasons]


def explained(breaks: Sequence[GraphBreak], told: Told) -> list[GraphBreak]:
    """Breaks with what was ``told`` of them, and those that are known by it alone.

    Dynamo keeps no reason where it cannot go on in a function behind a break, and no break at all
    where it leaves the whole function to Python.
    """
    found, known = [], set()
    for each in breaks:
        places = [(frame.filename, frame.lineno or 0) for frame in each.frames]
        known.update(places)
        if each.reason == _NO_REASON:
            why = (
                told.get(places[-1], "TORCH_LOGS=graph_breaks says why") if places else each.reason
            )
            each = each._replace(reason=_first_line_and(why, "the rest of the function"))
        found.append(each)
    for (file, line), why in told.items():
        if (file, line) not in known:
            frame = FrameSummary(file, line, "")
            found.append(GraphBreak(_first_line_and(why, "the function"), (frame,)))
    return found


def _first_line_and(reason: str, what: str) -> str:
    first, *more = reason.split("\n")
    return "\n".join([f"{first}; {what} runs in Python", *more])


_NO_REASON = "step_unsupported"  # behind such a break the rest of the function runs in Python
_BREAK = re.compile(
    r"in user code at (.*?):(\d+)\nGraph Break Reason: (.*?)\s*(?:\nUser code traceback:|\Z)",
    re.DOTALL,
)
_CANNOT_RESUME = re.compile(r"\A.*?Graph break encountered:\s*", re.DOTALL)


@contextlib.contextmanager
def told_graph_breaks() -> Iterator[Told]:
    """What Dynamo logs of graph breaks within the context, by file and line."""
    from torch._dynamo import symbolic_convert

    found: dict[tuple[str, int], str] = {}

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            match = _BREAK.search(record.getMessage())
            if match:
                file, line, reason = match.groups()
                found[file, int(line)] = _CANNOT_RESUME.sub("", reason)

    logger, collect = symbolic_convert.graph_break_log, Collect()
    before = logger.level, logger.propagate
    logger.addHandler(collect)
    if not logger.isEnabledFor(logging.DEBUG):  # else TORCH_LOGS shows them, and goes on to
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(collect)
        logger.setLevel(before[0])
        logger.propagate = before[1]
