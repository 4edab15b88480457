"""Segment: the piece of a graph that one backend compiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.ir.call import Arg, OpCall, Ref, format_arg, format_desc
from dovetail.ir.tensor import Desc

# A value that crosses a segment's border: a call's or input's name, and a path into its result.
ValueKey = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Input:
    """A value handed to a segment at each call.

    ``kind`` is "tensor", "constant" (the same values at every call until its address or version
    changes, so a backend may keep a copy), "shared" (a tensor that other segments of the same
    backend take too, so a copy is worth keeping until it is gone or changed), "size" (an int that
    binds the symbol of the same name) or "scalar" (a Python number).
    """

    name: str
    desc: Desc
    kind: str = "tensor"

    @property
    def ref(self) -> Ref:
        """A use of this input."""
        return Ref(self.name, self.desc)


@dataclass(frozen=True, slots=True)
class Segment:
    """Inputs, a linear list of calls, outputs. Calls are in an order in which they can run.

    Every symbol that a call needs is bound by an input of kind "size" or by an earlier call's
    ``binds``, so an executable never has to infer one from a tensor's shape.
    """

    name: str
    inputs: tuple[Input, ...]
    calls: tuple[OpCall, ...]
    outputs: tuple[Arg, ...]
    bare: bool = False  # as a subgraph: its one output is returned by itself, not in a tuple
    # As a subgraph: values of the graph around it for its last inputs (constants it holds).
    captures: tuple[Ref, ...] = ()
    # Symbols of which more is known than that they are sizes: the least and the greatest value.
    ranges: tuple[tuple[str, int, int], ...] = ()

    def symbols(self) -> tuple[str, ...]:
        """The symbols bound by inputs, in input order."""
        return tuple(i.name for i in self.inputs if i.kind == "size")

    def all_calls(self) -> Iterator[OpCall]:
        """Every call, those of subgraphs included."""
        for call in self.calls:
            yield call
            for sub in call.subgraphs():
                yield from sub.all_calls()

    def output_descs(self) -> tuple[Desc, ...]:
        """What is known of each output."""
        return tuple(o.desc if isinstance(o, Ref) else None for o in self.outputs)

    def __str__(self) -> str:
        head = ", ".join(
            f"%{i.name}: {format_desc(i.desc)}" + (f" {i.kind}" if i.kind != "tensor" else "")
            for i in self.inputs
        )
        known = ", ".join(f"{name} in {low}..{high}" for name, low, high in self.ranges)
        lines = [f"segment @{self.name}({head}){known and f' where {known}'} {{"]
        lines += [f"  {call}" for call in self.calls]
        lines += [f"  return {', '.join(map(format_arg, self.outputs))}", "}"]
        for call in self.calls:
            lines += [str(sub) for sub in call.subgraphs()]
        return "\n".join(lines)


def is_write(call: OpCall) -> bool:
    """Whether a call writes to its first argument (an in-place ATen op such as ``copy_``)."""
    parts = call.op.split(".")
    return len(parts) > 1 and parts[1].endswith("_") and not parts[1].endswith("__")
