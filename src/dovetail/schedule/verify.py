"""The plan verifier: kernels are well formed, and nothing is read before a step has made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.errors import UnsupportedGraph
from dovetail.ir.call import Ref, leaves
from dovetail.ir.kernel import Store
from dovetail.ir.kernel_verify import verify_kernel
from dovetail.ir.verify import requirement
from dovetail.lower.values import Host, LibraryCall, Source, Value, root_of
from dovetail.schedule.build import Built

if TYPE_CHECKING:
    from dovetail.schedule.plan import Plan


class InvalidPlan(UnsupportedGraph):
    """A plan breaks a rule."""


_require = requirement(InvalidPlan)


def verify_plan(plan: Plan) -> Plan:
    """The plan, when it can run in its order; InvalidPlan says what is wrong with it."""
    made: set[Value] = set()
    for number, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            for value in step.reads:
                _require_made(value, made, step.call.name)
            made.update(step.results)
        else:
            _verify_built(step, made, f"kernel {number}")
    for out in leaves(plan.segment.outputs):
        if isinstance(out, Ref) and (out.name, out.path) in plan.values:
            _require_made(plan.values[out.name, out.path], made, "the output")
    return plan


def _verify_built(built: Built, made: set[Value], user: str) -> None:
    kernel = verify_kernel(built.kernel)
    stored = {i.buffer for i in kernel.instructions() if isinstance(i, Store)}
    for buffer in kernel.buffers:
        value = built.buffers.get(buffer.name)
        _require(value is not None, f"{user} has no value for its buffer {buffer.name}")
        assert value is not None
        _require(value.dtype == buffer.dtype, f"{user} takes {value} for {buffer.dtype}")
        if buffer.role == "in":
            _require_made(value, made, user)
        else:
            _require(buffer.name in stored, f"{user} never writes {value}")
    outputs = (b for b in kernel.buffers if b.role != "in")
    made.update(root_of(built.buffers[b.name]) for b in outputs)


def _require_made(value: Value, made: set[Value], user: str) -> None:
    root = root_of(value)
    is_there = isinstance(root, Source) or root in made
    what = "a library call" if isinstance(root, Host) else "a kernel"
    _require(is_there, f"{user} reads {root} before {what} has made it")
