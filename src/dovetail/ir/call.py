"""OpCall: one operation of a functional graph, with nothing of FX in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.ir.real import Real
from dovetail.ir.size import Size
from dovetail.ir.tensor import Desc, TensorDesc

if TYPE_CHECKING:
    from dovetail.ir.segment import Segment


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value: its name, and what is known of it.

    ``path`` picks an element of an operation's tuple result, one index per level.
    """

    name: str
    desc: Desc = field(compare=False, default=None)
    path: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"%{self.name}" + "".join(f"[{i}]" for i in self.path)


@dataclass(frozen=True, slots=True)
class Attr:
    """A PyTorch constant by name: ``Attr("dtype", "float32")``, ``Attr("device", "cpu")``.

    Kinds: dtype, device, layout, memory_format, op (an operator passed as an argument).
    """

    kind: str
    value: str

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Table:
    """A dictionary argument, by key (kernel options of a higher-order operator)."""

    items: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key}: {format_arg(value)}' for key, value in self.items)}}}"


# What stands in an argument: Ref, Size, Attr, Table, Segment (a subgraph), a Python number, a
# string, None, or a tuple of these.
Arg = Any


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call: ``name: output = op(*args, **kwargs)``.

    ``op`` is the operator's full name (``aten.add.Tensor``, ``higher_order.cond``,
    ``python.truediv`` for arithmetic on numbers). ``binds`` names symbols that this call's
    result defines (a data-dependent size) and how to read each from it. ``candidate`` is the way to
    compute it that measuring found best, among those of its backend; empty: by the backend's rules.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg] = field(default_factory=dict)
    output: Desc = None
    binds: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    candidate: str = ""

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        """The descriptors of every tensor argument, in order, lists flattened."""
        return tuple(ref.desc for ref in self.refs() if isinstance(ref.desc, TensorDesc))

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        """The descriptors of every tensor this call produces, tuples flattened."""
        return tuple(desc for _, desc in tensors(self.output))

    @property
    def attributes(self) -> tuple[Arg, ...]:
        """The positional arguments that are not values: sizes, numbers, dtypes, …."""
        return tuple(arg for arg in self.args if not _holds_ref(arg))

    def refs(self) -> Iterator[Ref]:
        """Every value this call uses, subgraph captures not included."""
        for arg in self.leaves():
            if isinstance(arg, Ref):
                yield arg

    def leaves(self) -> Iterator[Arg]:
        """Every argument, lists flattened."""
        yield from leaves(self.args)
        yield from leaves(tuple(self.kwargs.values()))
        for _, desc in tensors(self.output):
            if desc.quantization is not None:
                yield from desc.quantization.refs()

    def symbols(self) -> frozenset[str]:
        """The symbols its arguments need at run time."""
        sizes = (leaf for leaf in self.leaves() if isinstance(leaf, Size | Real))
        return frozenset().union(*(size.symbols() for size in sizes))

    def subgraphs(self) -> Iterator[Segment]:
        """The subgraphs among its arguments (branches, loop bodies)."""
        from dovetail.ir.segment import Segment

        yield from (arg for arg in self.leaves() if isinstance(arg, Segment))

    def __str__(self) -> str:
        parts = [format_arg(a) for a in self.args]
        parts += [f"{k}={format_arg(v)}" for k, v in self.kwargs.items()]
        by = f" by {self.candidate}" if self.candidate else ""
        return f"%{self.name}: {format_desc(self.output)} = {self.op}({', '.join(parts)}){by}"


def leaves(arg: Arg) -> Iterator[Arg]:
    """The scalars of a nested argument, in order."""
    if isinstance(arg, tuple):
        for item in arg:
            yield from leaves(item)
    elif isinstance(arg, Table):
        for _, item in arg.items:
            yield from leaves(item)
    else:
        yield arg
        yield from getattr(arg, "captures", ())  # a subgraph uses what it captures
        quantization = getattr(getattr(arg, "desc", None), "quantization", None)
        if quantization is not None:  # a quantised operand needs its scales
            yield from quantization.refs()


def resolve(arg: Arg, values: Mapping[str, Any]) -> Any:
    """An argument with values put in for references and numbers for sizes.

    ``values`` holds inputs and results by name; a size input is named after the symbol it binds.
    """
    if isinstance(arg, Ref):
        value = values[arg.name]
        for index in arg.path:
            value = value[index]
        return value
    if isinstance(arg, Size | Real):
        return arg.evaluate(values)
    if isinstance(arg, tuple):
        return [resolve(item, values) for item in arg]
    return arg


def format_arg(arg: Arg) -> str:
    """An argument as it stands in the printed form."""
    if isinstance(arg, tuple):
        return f"[{', '.join(map(format_arg, arg))}]"
    if hasattr(arg, "calls"):
        return f"@{arg.name}"
    return repr(arg) if isinstance(arg, str | float) else str(arg)


def format_desc(desc: Desc) -> str:
    """A result's descriptor as it stands in the printed form."""
    return f"({', '.join(map(format_desc, desc))})" if isinstance(desc, tuple) else str(desc)


def _holds_ref(arg: Arg) -> bool:
    return any(isinstance(leaf, Ref) for leaf in leaves(arg))


def tensors(desc: Desc, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], TensorDesc]]:
    """The tensors among a call's results, with the path to each."""
    if isinstance(desc, TensorDesc):
        yield path, desc
    elif isinstance(desc, tuple):
        for n, item in enumerate(desc):
            yield from tensors(item, (*path, n))
