"""What is measured: one call apart from its graph, with what is likely to be joined to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from dovetail.ir.call import OpCall, Ref, leaves
from dovetail.ir.canonical import canonical_bytes
from dovetail.ir.dtypes import COMPUTE, FLOATS, item_bytes
from dovetail.ir.segment import Input, Segment
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.calls import lowered_alone
from dovetail.lower.values import View

MOST_BYTES = 1 << 30  # of the operands and results of a call that is measured


@dataclass(frozen=True)
class Problem:
    """A segment of one call; those alike but for names are the same problem.

    Inputs of kind "constant" are the same at every call, so what depends on them alone is prepared
    once.
    """

    segment: Segment

    @cached_property
    def text(self) -> str:
        """What tells it from other problems."""
        return canonical_bytes(self.segment).decode()

    @property
    def call(self) -> OpCall:
        """The call that has candidates."""
        return self.segment.calls[0]

    @property
    def constants(self) -> frozenset[str]:
        """The inputs that are the same at every call."""
        return frozenset(i.name for i in self.segment.inputs if i.kind == "constant")

    def by(self, candidate: str) -> Segment:
        """The segment with its call computed by a candidate; empty: as the rules say."""
        first, *rest = self.segment.calls
        return replace(self.segment, calls=(replace(first, candidate=candidate), *rest))


def problem_of(segment: Segment, call: OpCall, once: Collection[str]) -> Problem | str:
    """The problem that a call of a segment poses, or why it is not measured."""
    if any(True for _ in call.subgraphs()) or call.binds:
        return "it is no call by itself"
    descs = (*call.inputs, *call.outputs)
    if not all(desc.is_static for desc in descs) or call.symbols():
        return "its sizes are not known when it is compiled"
    if sum((desc.numel or 0) * item_bytes(desc.dtype) for desc in descs) > MOST_BYTES:
        return "its operands take too much memory"
    given: dict[Ref, Input] = {}
    for ref in call.refs():
        if not isinstance(ref.desc, TensorDesc) or ref.path:
            return "it takes values that are no tensors"
        kind = "constant" if ref.name in once else "tensor"
        given.setdefault(ref, Input(ref.name, ref.desc, kind))
    calls, outputs = _followed(segment, call)
    return Problem(Segment("problem", tuple(given.values()), calls, outputs))


def _followed(segment: Segment, call: OpCall) -> tuple[tuple[OpCall, ...], tuple[Ref, ...]]:
    """The call, and a rectifier for what a kernel would do with its result on the way.

    Where a library computes the call, that is a pass over the result.
    """
    alone, made = replace(call, candidate=""), call.output
    if isinstance(made, TensorDesc) and _is_joined(segment, call):
        ref = Ref(f"{call.name}_after", made)
        after = OpCall(ref.name, "aten.relu.default", (Ref(call.name, made),), {}, made)
        return (alone, after), (ref,)
    users = (*segment.calls, *segment.outputs)
    refs = (r for u in users for r in (u.refs() if isinstance(u, OpCall) else leaves(u)))
    used = {r.path: r for r in refs if isinstance(r, Ref) and r.name == call.name}
    return (alone,), tuple(used[path] for path in sorted(used))


def _is_joined(segment: Segment, call: OpCall) -> bool:
    """Whether one call reads the result, views aside, and computes as many elements from it."""
    while True:
        users = [each for each in segment.calls if any(r.name == call.name for r in each.refs())]
        outputs = leaves(segment.outputs)
        if len(users) != 1 or any(isinstance(o, Ref) and o.name == call.name for o in outputs):
            return False
        (user,) = users
        found, made = lowered_alone(user), user.output
        if found.refusal or found.contractions or not isinstance(made, TensorDesc):
            return False
        if made.numel != call.outputs[0].numel or COMPUTE.get(made.dtype) not in FLOATS:
            return False
        if not all(isinstance(result, View) for result in found.results):
            return True
        call = user
