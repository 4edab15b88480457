"""What is known of a compiled graph, as a value: it can be printed, compared, stored and sent.

A graph is one part that runs at every call and, where it has constants (a frozen model's
parameters), another that runs when they change. A part is segments in order, each with the code
that its backend made of it, and the wiring: which values go from where to where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.backend import Blob
from dovetail.compiled.tensors import tensor_to_bytes
from dovetail.ir.call import Arg
from dovetail.ir.encode import segment_from_bytes
from dovetail.ir.segment import Input, Segment, ValueKey
from dovetail.place.verdicts import Verdict


class Calls:
    """The calls of a segment, read from their bytes when somebody asks, which a run does not."""

    __slots__ = ("_segment", "draws", "name")

    def __init__(self, segment: Segment | bytes, name: str, *, draws: bool) -> None:
        self._segment = segment
        self.name = name
        self.draws = draws  # whether any of them draws random numbers

    @property
    def segment(self) -> Segment:
        """The segment that they make up."""
        if isinstance(self._segment, bytes):
            self._segment = segment_from_bytes(self._segment)
        return self._segment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calls) and self.segment == other.segment

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """A segment, its code, and its place in the data flow."""

    calls: Calls
    backends: tuple[str, ...]  # whose code it is, then who else may run it, best first
    blob: Blob
    sources: tuple[ValueKey, ...]  # one for each input of the segment
    results: tuple[ValueKey, ...]  # one for each output of the segment
    failures: tuple[tuple[str, str], ...] = ()  # backend, reason: who failed to compile or load it

    @property
    def backend(self) -> str:
        """The backend whose code it is."""
        return self.backends[0]

    @property
    def name(self) -> str:
        """The segment's name, unique within its graph."""
        return self.calls.name

    @property
    def segment(self) -> Segment:
        """The segment, with its calls."""
        return self.calls.segment

    def __repr__(self) -> str:
        return f"<{self.name} compiled by {self.backend}, {len(self.blob.data)} bytes>"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledPart:
    """Compiled segments in order, and the wiring between them."""

    inputs: tuple[Input, ...]
    outputs: tuple[Arg, ...]
    segments: tuple[CompiledSegment, ...]
    symbols: Mapping[str, tuple[int, int | None]]  # symbol → input position, dimension (or itself)
    constants: Mapping[str, Any] = field(default_factory=dict)  # tensors mostly
    # Where each call runs and who refused it; a function where nobody has asked yet.
    verdicts: tuple[Verdict, ...] | Callable[[], tuple[Verdict, ...]] = ()
    hints: Mapping[str, int] = field(default_factory=dict)  # symbol → its value when compiled
    # A graph that our IR cannot express runs in PyTorch as it was captured.
    captured: Callable[..., Any] | None = None
    why_captured: str = ""

    def all_verdicts(self) -> tuple[Verdict, ...]:
        """Where each call runs and who refused it."""
        return self.verdicts() if callable(self.verdicts) else self.verdicts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompiledPart) and self._value() == other._value()

    __hash__ = None  # type: ignore[assignment]

    def _value(self) -> tuple[Any, ...]:
        wiring = self.inputs, self.outputs, self.segments, dict(self.symbols), dict(self.hints)
        tensors = {name: _contents(name, value) for name, value in self.constants.items()}
        return *wiring, tensors, self.all_verdicts(), self.captured

    def not_portable(self) -> str:
        """Why this process alone can run the part; empty: any can."""
        if self.captured is not None:
            return f"PyTorch runs the graph as captured: {self.why_captured}"
        for each in self.segments:
            if not each.blob.is_portable:
                return f"the code of the backend {each.backend!r} is an object of this process"
        for name, value in self.constants.items():
            if not hasattr(value, "untyped_storage"):
                return f"the graph holds {name}, a {type(value).__name__}"
        return ""


def _contents(name: str, value: Any) -> Any:
    """A constant as equality sees it: a tensor by what it holds."""
    return tensor_to_bytes(name, value) if hasattr(value, "untyped_storage") else value


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A functional graph, compiled.

    ``once`` takes the inputs at the positions ``frozen``; ``every`` takes the other inputs, then
    what ``once`` gave. Without ``once``, ``every`` takes all inputs.
    """

    kind: str  # "inference", "forward", "backward"
    every: CompiledPart
    once: CompiledPart | None = None
    frozen: tuple[int, ...] = ()
    labels: Mapping[int, str] = field(default_factory=dict)  # what users call weights, by position
    backends: tuple[tuple[str, str], ...] = ()  # name and fingerprint, best first

    def parts(self) -> Iterator[tuple[str, CompiledPart]]:
        """Each part with the name that the report has for it."""
        if self.once is not None:
            yield f"{self.kind}, once", self.once
        yield self.kind, self.every

    def count_inputs(self) -> int:
        """How many inputs it takes; not to be asked where a part runs as captured."""
        made = 0 if self.once is None else len(self.once.outputs)
        return len(self.frozen) + len(self.every.inputs) - made

    def not_portable(self) -> str:
        """Why this process alone can run the graph; empty: any can."""
        return next((why for _, part in self.parts() if (why := part.not_portable())), "")

    def __str__(self) -> str:
        from dovetail.compiled.text import print_graph

        return print_graph(self)
