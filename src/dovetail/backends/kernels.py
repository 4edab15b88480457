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

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dovetail.backend import Availability, Backend, Blob, Executable, Support, torch_available
from dovetail.constraints import Constraints
from dovetail.errors import (
    BackendNameTaken,
    BackendNotCallable,
    DovetailError,
    KernelFailed,
    UnknownOperator,
    UnknownOption,
)
from dovetail.ir import TensorDesc
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes

if TYPE_CHECKING:
    from dovetail.ir import Arg, OpCall, Segment
    from dovetail.ir.tensor import Desc

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
    if "torch" in sys.modules:  # else when the backend is first used
        check_declaration(op, declared)

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

    def available(self) -> Availability:
        """Wherever PyTorch is; what the kernels are declared for must exist."""
        answer = torch_available()
        if answer:
            for each in chain.from_iterable(self.kernels.values()):
                check_declaration(each.op, each.constraints)
        return answer

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
        """The first kernel that takes a call; what it gives is held against the call's results."""
        for each in self.kernels.get(call.op, ()):
            if each.constraints.check(call, arguments_by_name):
                return _guarded(self.name, call, each.fn)
        return None


def _guarded(backend: str, call: OpCall, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, whose errors name it, and whose results are what the operator gives."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fn(*args, **kwargs)
        except DovetailError:
            raise
        except Exception as error:
            given = ", ".join(_given(value) for value in (*args, *kwargs.values()))
            problem = f"{type(error).__name__}: {error}"
            raise KernelFailed(backend, f"{call.op} on {given}", problem) from error
        problem = _misfit(call.output, result)
        if problem:
            raise KernelFailed(backend, str(call), problem)
        return result

    return run


def _given(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


def _misfit(desc: Desc, value: Any) -> str:
    """How a result differs from what the operator gives, as far as sizes are numbers."""
    if isinstance(desc, tuple):
        if not isinstance(value, tuple | list) or len(value) != len(desc):
            return f"it gave {type(value).__name__}, not {len(desc)} results"
        return next(filter(None, map(_misfit, desc, value)), "")
    if not isinstance(desc, TensorDesc):
        return ""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return f"it gave a {type(value).__name__}, not a tensor"
    sizes = zip(desc.shape, value.shape, strict=False)
    fits = len(value.shape) == desc.rank and all(
        not isinstance(size, int) or size == given for size, given in sizes
    )
    if fits and str(value.dtype).removeprefix("torch.") == desc.dtype:
        if str(value.device) == desc.device:
            return ""
        return f"it gave a tensor on {value.device}, and the operator gives one on {desc.device}"
    return f"it gave {_given(value)}, and the operator gives {desc}"


@functools.cache
def _checked(op: str, attributes: tuple[str, ...]) -> None:
    from dovetail.capture._torch.operators import known_operators, plain_arguments

    namespace, *rest = op.split(".")
    known = known_operators(namespace)
    if not known:  # a library of operators that may yet be loaded
        return
    if op not in known:
        overloads = [name for name in known if name.startswith(f"{op}.")]
        near = overloads or get_close_matches(op, known, 3)
        raise UnknownOperator("operator", op, near if rest else ())
    arguments = plain_arguments(op)
    for name in attributes:
        if name not in arguments:
            near = get_close_matches(name, arguments, 2) or arguments
            raise UnknownOperator("argument", name, near, f" of {op} that is no tensor")


def check_declaration(op: str, constraints: Constraints) -> None:
    """UnknownOperator where PyTorch has no such operator, or it has no such argument."""
    _checked(op, tuple(sorted(constraints.attributes)))


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
