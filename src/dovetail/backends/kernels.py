"""A backend made of Python functions, one an operator: the quickest way to try kernels out.

>>> class MyAccel(dovetail.KernelBackend):
...     name = "my_accel"
...
...     @dovetail.kernel("aten.mm.default", dtypes={"float32"}, layout="contiguous")
...     def mm(a, b):
...         return my_library.matmul(a, b)

A kernel gets what the operator gets, in the same order, and returns what it returns. Everything it
does not take runs on the next backend, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dovetail.backend import Backend, Blob, Executable, Support
from dovetail.constraints import Constraints
from dovetail.errors import BackendNameTaken, BackendNotCallable, UnknownOption
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes

if TYPE_CHECKING:
    from dovetail.ir import Arg, OpCall, Segment

Fn = TypeVar("Fn", bound=Callable[..., Any])
_MARK = "__dovetail_kernels__"


@dataclass(frozen=True)
class PythonKernel:
    """A function, the operator it implements, and what it takes."""

    op: str
    fn: Callable[..., Any]
    constraints: Constraints


def kernel(op: str, **constraints: Any) -> Callable[[Fn], Fn]:
    """Declare that a function implements ``op`` under these constraints (see ``Constraints``).

    Declared more than once, for other operators or other constraints, it implements each.
    """
    for name in constraints:
        if name not in Constraints.names():
            raise UnknownOption("constraint", name, Constraints.names())
    if not isinstance(op, str):
        raise BackendNotCallable(op)
    declared = Constraints(**constraints)

    def mark(fn: Fn) -> Fn:
        held = getattr(fn, _MARK, ())
        setattr(fn, _MARK, (*held, PythonKernel(op, fn, declared)))
        return fn

    return mark


class KernelBackend(Backend):
    """A backend whose methods marked with ``@kernel`` are its operators."""

    kernels: ClassVar[Mapping[str, tuple[PythonKernel, ...]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found: dict[str, tuple[PythonKernel, ...]] = dict(cls.kernels)
        for value in vars(cls).values():
            for each in getattr(value, _MARK, ()):
                if each.constraints in [k.constraints for k in found.get(each.op, ())]:
                    raise BackendNameTaken(each.op, cls.__name__, f"{each.fn.__qualname__}")
                found[each.op] = (*found.get(each.op, ()), each)
        cls.kernels = found

    def supports(self, call: OpCall) -> Support:
        """Whether one of the operator's kernels takes the call; else why the last does not."""
        answer = Support.no(f"no kernel for {call.op}")
        for each in self.kernels.get(call.op, ()):
            answer = each.constraints.check(call, arguments_by_name)
            if answer:
                return answer
        return answer

    def compile(self, segment: Segment) -> Blob:
        """The calls in order: which kernel runs each follows from the call."""
        return Blob(segment_to_bytes(segment))

    def load(self, blob: Blob) -> Executable:
        """Run call by call on the kernels."""
        from dovetail.runtime.interpreter import Interpreter

        return Interpreter(segment_from_bytes(blob.data), choose=self.choose)

    def choose(self, call: OpCall) -> Callable[..., Any] | None:
        """The first kernel that takes a call."""
        for each in self.kernels.get(call.op, ()):
            if each.constraints.check(call, arguments_by_name):
                return each.fn
        return None


def arguments_by_name(call: OpCall) -> dict[str, Arg]:
    """A call's arguments by the names in the operator's schema, defaults included."""
    from dovetail.capture._torch.operators import schema_of
    from dovetail.capture.ops import resolve_op

    names = schema_of(resolve_op(call.op)).arguments
    given: dict[str, Arg] = {
        a.name: _plain(a.default_value) for a in names if a.has_default_value()
    }
    given |= {a.name: value for a, value in zip(names, call.args, strict=False)}
    return given | dict(call.kwargs)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
