"""What keeps a model from running without PyTorch, in words: each operator, and its lines."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.capture.lines import source_of_trace

_MOST_LINES = 3  # of the model, for each operator
_ADVICE = (
    "write these lines with other operators, or leave out without_torch (--without-torch): "
    "the file then calls PyTorch for these alone"
)


def needs_torch(reasons: Mapping[str, str], traces: Mapping[str, tuple[str, ...]]) -> str:
    """All operators that no kernel of the runtime's own serves, and what to do about them.

    ``reasons`` says of each operator why there is no kernel, ``traces`` where in the model's code
    its calls come from.
    """
    told = [_told(op, reasons[op], traces.get(op, ())) for op in sorted(reasons)]
    return f"no kernel of the runtime's own serves {', '.join(told)}: {_ADVICE}"


def _told(op: str, reason: str, traces: tuple[str, ...]) -> str:
    found = filter(None, map(source_of_trace, traces))
    lines = list(dict.fromkeys("{file}:{line}".format(**source) for source in found))
    shown = lines[:_MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"{len(lines) - len(shown)} more lines")
    why = [] if op in reason else [reason]  # that there is none is said already
    about = "; ".join([*why, *([f"at {', '.join(shown)}"] if shown else [])])
    return f"{op} ({about})" if about else op
