"""A model's lines beside its kernels in ``torch.profiler``, for what option ``profile`` compiles.

Which calls an instruction computes is known after its plan is made once more (``origins.py``), and
that is done when a profiler first sees it run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail import history
from dovetail.capture._torch.profiler import tell_lines
from dovetail.capture.lines import source_of
from dovetail.errors import DovetailError
from dovetail.report.collect import read_segment
from dovetail.report.trace import lines_of
from dovetail.runtime.link import LinkedPart

Sources = Mapping[str, Mapping[str, Any] | None]  # by the call's name


@contextlib.contextmanager
def lines_told() -> Iterator[None]:
    """Keep the lines of compilations that begin in the context, unless somebody watches them."""
    if history.is_observed():
        yield
        return
    with history.observed_by(LineTeller()):
        yield


class LineTeller:
    """A ``history.Observer`` that tells the profiler of lines."""

    def __init__(self) -> None:
        self.sources: dict[tuple[int, str], Sources] = {}

    def saw_graph(self, number: int, kind: str, gm: Any, names: Sequence[str]) -> None:  # noqa: ARG002
        """Note where nodes come from."""
        self.sources[number, kind] = {node.name: source_of(node) for node in gm.graph.nodes}

    def saw_part(self, number: int, part: LinkedPart) -> None:
        """Tell of what runs."""
        tell_lines(functools.partial(_lines, part, self.sources.pop((number, part.kind), {})))


def _lines(part: LinkedPart, sources: Sources) -> dict[str, list[str]]:
    """Lines by the names of the part's instructions."""
    found: dict[str, list[str]] = {}
    for each in part.segments:
        with contextlib.suppress(DovetailError):  # a profile does without
            program, _ = read_segment(each, part.compiled.hints)
            for row in program["instructions"] if program else ():
                lines = lines_of(sources.get(name) for name in row["calls"])
                found.setdefault(row["name"], []).extend(lines)
    return found
