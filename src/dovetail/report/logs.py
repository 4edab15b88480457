"""What ``TORCH_LOGS`` shows of a compilation, under the names that it has for Inductor's.

``post_grad_graphs``: each graph after all passes; ``fusion``: which calls each kernel computes;
``schedule``: kernel IR and its schedule; ``kernel_code``: the code of each kernel; ``output_code``:
the program of each segment, then the code of its kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail import history
from dovetail.capture._torch.logs import log_artifact, wanted_artifacts
from dovetail.file.processors import target_here
from dovetail.passes.text import graph_text
from dovetail.report.code import kernel_data
from dovetail.report.collect import read_segment
from dovetail.runtime.link import LinkedPart


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """Write the logs of compilations that begin in the context, unless somebody watches them."""
    wanted = wanted_artifacts()
    if not wanted or history.is_observed():
        yield
        return
    with history.observed_by(LogWriter(wanted)):
        yield


class LogWriter:
    """A ``history.Observer`` that writes what it is shown."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted

    def saw_graph(self, number: int, kind: str, gm: Any, names: Sequence[str]) -> None:  # noqa: ARG002
        """Write a graph."""
        if "post_grad_graphs" in self.wanted:
            log_artifact("post_grad_graphs", f"{kind} graph:\n{graph_text(gm)}")

    def saw_part(self, number: int, part: LinkedPart) -> None:  # noqa: ARG002
        """Write the code of each segment."""
        if not self.wanted - {"post_grad_graphs"}:
            return
        for each in part.segments:
            program, kernels = read_segment(each, part.compiled.hints)
            place = f"{part.kind} graph, {each.compiled.name} on {each.backend.name}"
            if program is None:
                self._write("output_code", f"{place}: its backend's code cannot be read")
                continue
            rows = kernel_data(kernels, target_here()) if kernels else []
            code = "\n".join(f"; {row['name']}\n{row['llvm']}" for row in rows)
            self._write("output_code", f"{place}:\n{program['text']}\n{code}")
            for row in rows:
                self._write("kernel_code", f"{place}, {row['name']}:\n{row['llvm']}")
                self._write("schedule", f"{place}:\n{row['ir']}\n{row['schedule']}")
            for row in program["instructions"]:
                calls = ", ".join(row["calls"]) or "nothing of the graph"
                self._write("fusion", f"{place}: {row['kind']} {row['name']} computes {calls}")

    def _write(self, name: str, text: str) -> None:
        if name in self.wanted:
            log_artifact(name, text)
