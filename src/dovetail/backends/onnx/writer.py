"""The parts of an ONNX model in the making: names, constants, sizes, nodes.

What each operator becomes is in ``ops`` and its neighbours; ``convert`` writes the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.ir import Arg, OpCall, Ref, Size
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.size import Dim
from dovetail.ir.tensor import TensorDesc

METADATA = "dovetail.segment"  # where a model keeps the segment it was made from
# Types of tensors that models hold, as ONNX numbers them.
TYPES = {name: row.onnx for name, row in DTYPES.items() if row.onnx}
_SIZES = {"add": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min"}

Results = str | tuple[str | None, ...]
Rule = Callable[["ModelWriter", OpCall], Results]


class NotInOnnx(Exception):
    """A rule does not cover a call; the message says why."""


class Rules(dict[str, Rule]):
    """What operators of ATen become, by name without the namespace."""

    def add(self, *names: str) -> Callable[[Rule], Rule]:
        """Declare what ``names`` become."""

        def declare(fn: Rule) -> Rule:
            for name in names:
                if name in self:
                    raise ValueError(f"two rules for {name}")
                self[name] = fn
            return fn

        return declare


class ModelWriter:
    """The nodes of a model in the making; values go by name."""

    def __init__(self) -> None:
        import onnx.helper

        self.helper: Any = onnx.helper
        self.nodes: list[Any] = []
        self.initializers: dict[Any, Any] = {}
        self.names: dict[tuple[str, tuple[int, ...]], str] = {}
        self.symbols: dict[str, str] = {}  # a symbol → an int64 tensor of one element
        self.given: set[str] = set()  # outputs of the model
        self.outside: set[str] = set()  # values that no node makes
        self._sizes: dict[Dim, str] = {}
        self._count = 0

    # ---- values ----------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """A name that no value of a segment has."""
        self._count += 1
        return f"{stem}.{self._count}"

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """One node; its result's name, or its results' names."""
        names = [self.fresh(op) for _ in range(outputs)]
        self.nodes.append(self.helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, value: Any, dtype: str, shape: Sequence[int] = ()) -> str:
        """A number, or numbers of a shape."""
        key = (repr(value), dtype, tuple(shape))
        if key not in self.initializers:
            name = self.fresh("constant")
            flat = list(value) if isinstance(value, list | tuple) else [value]
            tensor = self.helper.make_tensor(name, TYPES[dtype], list(shape), flat)
            self.initializers[key] = tensor
            self.outside.add(name)
        return str(self.initializers[key].name)

    def integers(self, values: Sequence[int]) -> str:
        """A list of int64."""
        return self.constant(list(values), "int64", [len(values)])

    def value(self, arg: Arg) -> str:
        """The tensor a reference names."""
        tensor(arg)
        return self.names[arg.name, arg.path]

    def operand(self, arg: Arg, dtype: str) -> str:
        """A tensor, number or size in the given type."""
        if isinstance(arg, Ref):
            return self.cast(self.value(arg), tensor(arg).dtype, dtype)
        if isinstance(arg, Size):
            scalar = self.node("Reshape", self.size(arg), self.integers([]))
            return self.cast(scalar, "int64", dtype)
        if not isinstance(arg, bool | int | float):
            raise NotInOnnx(f"an operand that is no tensor or number: {arg!r}")
        return self.constant(_as(arg, dtype), dtype)

    def cast(self, name: str, have: str, want: str) -> str:
        """A value in another type."""
        if want not in TYPES:
            raise NotInOnnx(f"no {want}")
        return name if have == want else str(self.node("Cast", name, to=TYPES[want]))

    # ---- sizes -----------------------------------------------------------------------------

    def size(self, dim: Dim) -> str:
        """A size as an int64 tensor of one element."""
        if isinstance(dim, int):
            return self.integers([dim])
        if dim not in self._sizes:
            self._sizes[dim] = self._computed(dim)
        return self._sizes[dim]

    def _computed(self, dim: Size) -> str:
        if dim.is_symbol:
            if dim.args[0] not in self.symbols:
                raise NotInOnnx(f"nothing binds the symbol {dim}")
            return self.symbols[dim.args[0]]
        if dim.op not in (*_SIZES, "mod", "floordiv"):
            raise NotInOnnx(f"a size computed in floating point: {dim}")
        left, right = (self.size(arg) for arg in dim.args)
        if dim.op in _SIZES:
            return str(self.node(_SIZES[dim.op], left, right))
        rest = self.node("Mod", left, right)  # the sign of the divisor, as in Python
        if dim.op == "mod":
            return str(rest)
        return str(self.node("Div", self.node("Sub", left, rest), right))

    def shape(self, dims: Sequence[Dim]) -> str:
        """Sizes as one int64 tensor."""
        known = [d for d in dims if isinstance(d, int)]
        if len(known) == len(dims):
            return self.integers(known)
        parts = [self.size(d) for d in dims]
        return str(self.node("Concat", *parts, axis=0)) if len(parts) > 1 else parts[0]


def tensor(arg: Arg) -> TensorDesc:
    """The descriptor of an argument that must be a tensor."""
    if not isinstance(arg, Ref) or not isinstance(arg.desc, TensorDesc):
        raise NotInOnnx(f"an operand that is no tensor: {arg!s}")
    return arg.desc


def _as(value: float, dtype: str) -> float | int | bool:
    if dtype == "bool":
        return bool(value)
    return float(value) if dtype.startswith("float") else int(value)
