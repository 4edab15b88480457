"""Give each call of a graph to the backend that runs it best, and cut the graph there.

Every backend is asked for every call (``verdicts.py``), views go with their neighbours
(``glue.py``), calls of one backend join into segments that cannot form a cycle (``stages.py``),
segments that do not pay for their copies go to the next backend (``worth.py``), and each is given
its inputs and outputs (``cut.py``). Each step is linear in the size of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from dovetail.backend import Backend
from dovetail.capture.from_fx import GraphReader, body, outputs_of, size_hints, size_ranges
from dovetail.ir import Arg, Input
from dovetail.place.cost import Costs
from dovetail.place.cut import Cutter, PlacedSegment
from dovetail.place.glue import leave_returned_views, settle_views
from dovetail.place.stages import Group
from dovetail.place.uses import uses_of
from dovetail.place.verdicts import Choice, Verdict, ask
from dovetail.place.worth import Weigher


@dataclass(frozen=True, slots=True)
class Placement:
    """A graph cut into segments."""

    inputs: tuple[Input, ...]
    constants: dict[str, Any]
    symbols: dict[str, tuple[int, int | None]]  # symbol → input position, dimension (None: itself)
    segments: tuple[PlacedSegment, ...]
    outputs: tuple[Arg, ...]
    verdicts: tuple[Verdict, ...]
    hints: dict[str, int] = field(default_factory=dict)  # symbol → its value in the example call


def place(
    gm: fx.GraphModule, backends: Sequence[Backend], *, keep_small: bool = False
) -> Placement:
    """Cut a functional graph into segments, each for the best backend that takes its calls.

    The last backend must take everything. With ``keep_small`` a segment stays where its calls are
    supported, whatever its copies cost.
    """
    reader = GraphReader(gm)
    calls = [call for node in body(gm) if (call := reader.read(node)) is not None]
    outputs = reader.arg(outputs_of(gm))
    asked = backends[:-1]
    choices = [ask(call, asked) for call in calls]
    uses = [uses_of(call) for call in calls]
    hints = size_hints(gm)
    costs = Costs(hints)
    settle_views(calls, uses, choices, backends, costs)
    leave_returned_views(calls, uses, choices, backends, outputs)
    kept = frozenset(reader.constants) | {i.name for i in reader.inputs if i.kind == "constant"}
    weigher = Weigher(calls, uses, choices, backends, outputs, kept, costs)
    groups = weigher.computing() if keep_small else weigher.settle()
    cutter = Cutter(reader.inputs, reader.constants, outputs, size_ranges(gm))
    segments = cutter.cut(calls, uses, groups, _runners(groups, choices, backends))
    names = [backend.name for backend in backends]
    verdicts = [
        Verdict(
            call.name,
            call.op,
            names[choice.chosen],
            tuple(zip(names, choice.answers, strict=False)),
        )
        for call, choice in zip(calls, choices, strict=True)
    ]
    return Placement(
        inputs=tuple(reader.inputs),
        constants=dict(reader.constants),
        symbols=cutter.symbols,
        segments=tuple(segments),
        outputs=tuple(outputs),
        verdicts=tuple(verdicts),
        hints=hints,
    )


def _runners(
    groups: Sequence[Group], choices: Sequence[Choice], backends: Sequence[Backend]
) -> list[tuple[Backend, ...]]:
    """For each segment its backend, then every later one that takes all its calls."""
    last = len(backends) - 1
    found: list[tuple[Backend, ...]] = []
    sure = {last: (backends[last],), last - 1: tuple(backends[last - 1 :])}
    for position, members in groups:
        if position in sure:
            found.append(sure[position])
            continue
        others = [
            n
            for n in range(position + 1, last + 1)
            if n == last or all(choices[m].takes(n) for m in members)
        ]
        found.append((backends[position], *(backends[n] for n in others)))
    return found
