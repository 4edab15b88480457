"""What an exported program demands of its inputs, checked at every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.from_fx import describe
from dovetail.errors import GuardFailed
from dovetail.ir import Desc, Dim, ScalarDesc, Size, TensorDesc
from dovetail.ir.size import evaluate, symbols_of

_ANY = object()  # no plain value to compare with


@dataclass(frozen=True)
class InputGuards:
    """Per input its name and descriptor; per symbol its range. A plain value must be equal."""

    inputs: tuple[tuple[str, Desc, Any], ...]
    ranges: Mapping[str, tuple[int, int | None]]

    @staticmethod
    def of(nodes: Sequence[Any], range_constraints: Mapping[Any, Any]) -> InputGuards:
        """Guards from the program's input nodes and torch.export's constraints."""
        inputs = tuple((n.name, describe(n.meta.get("val")), n.meta.get("val")) for n in nodes)
        ranges = {str(s): _range(r) for s, r in range_constraints.items()}
        return InputGuards(tuple(_without_fakes(i) for i in inputs), ranges)

    @staticmethod
    def of_values(
        rows: Sequence[tuple[str, Desc, tuple[Any, ...]]],
        ranges: Mapping[str, tuple[int, int | None]],
    ) -> InputGuards:
        """Guards whose plain values are given as ``plain_value`` has them."""
        inputs = ((name, desc, *(value or (_ANY,))) for name, desc, value in rows)
        return InputGuards(tuple(inputs), ranges)

    def plain_value(self, number: int) -> tuple[Any, ...]:
        """The value that an input must be, alone in a tuple; nothing where any will do."""
        value = self.inputs[number][2]
        return () if value is _ANY else (value,)

    def check(self, values: Sequence[Any]) -> None:
        """Raise GuardFailed naming the first input that does not fit."""
        symbols: dict[str, int] = {}
        for (name, desc, constant), value in zip(self.inputs, values, strict=True):
            if isinstance(desc, TensorDesc):
                _check_tensor(name, desc, value, symbols)
            elif isinstance(desc, ScalarDesc) and desc.size is not None:
                if type(value) is not int:
                    given = type(value).__name__
                    raise GuardFailed(f"input {name!r} is a {given}, expected an int")
                _bind(desc.size, value, symbols)
            elif constant is not _ANY and not _equal(constant, value):
                raise GuardFailed(f"input {name!r} is {value!r}, but exported as {constant!r}")
        self._check_ranges(symbols)
        self._check_derived(values, symbols)

    def _check_ranges(self, symbols: Mapping[str, int]) -> None:
        for symbol, value in symbols.items():
            low, high = self.ranges.get(symbol, (0, None))
            if value < low or (high is not None and value > high):
                shown = f"at least {low}" if high is None else f"{low} to {high}"
                raise GuardFailed(f"the dynamic size {symbol} is {value}; it may be {shown}")

    def _check_derived(self, values: Sequence[Any], symbols: Mapping[str, int]) -> None:
        for (name, desc, _), value in zip(self.inputs, values, strict=True):
            if not isinstance(desc, TensorDesc):
                continue
            for dim, size in enumerate(desc.shape):
                if symbols_of(size) <= symbols.keys():
                    expected = evaluate(size, symbols)
                    if value.shape[dim] != expected:
                        raise GuardFailed(
                            f"input {name!r} has size {value.shape[dim]} in dimension {dim}, "
                            f"expected {size} = {expected}"
                        )


def _check_tensor(name: str, desc: TensorDesc, value: Any, symbols: dict[str, int]) -> None:
    if not isinstance(value, torch.Tensor):
        raise GuardFailed(f"input {name!r} is a {type(value).__name__}, expected a tensor {desc}")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != desc.dtype:
        raise GuardFailed(f"input {name!r} is {dtype}, expected {desc.dtype}")
    if not _is_on(value.device, desc.device):
        raise GuardFailed(f"input {name!r} is on {value.device}, expected {desc.device}")
    if value.dim() != desc.rank:
        raise GuardFailed(f"input {name!r} has {value.dim()} dimensions, expected {desc.rank}")
    for dim, size in enumerate(desc.shape):
        if isinstance(size, int) and value.shape[dim] != size:
            raise GuardFailed(
                f"input {name!r} has size {value.shape[dim]} in dimension {dim}, expected {size}; "
                "pass dynamic_shapes to export if it may vary"
            )
        if not _bind(size, value.shape[dim], symbols):
            raise GuardFailed(
                f"input {name!r} has size {value.shape[dim]} in dimension {dim}, "
                f"expected a value of {size}"
            )


def _is_on(device: torch.device, wanted: str) -> bool:
    """Whether a device is the one that a model was exported for; kernels know one GPU's memory."""
    kind, _, index = wanted.partition(":")
    return device.type == kind and (not index or (device.index or 0) == int(index))


def _bind(size: Dim, value: int, symbols: dict[str, int]) -> bool:
    """Learn a symbol from a size; False when no whole number makes ``size`` that value.

    Solves what torch.export derives one dimension from another with: ``2 * s + 1``.
    """
    if not isinstance(size, Size) or size.op not in ("symbol", "mul", "add", "sub"):
        return True
    if size.is_symbol:
        symbols.setdefault(size.args[0], value)
        return True
    left, right = size.args
    if not isinstance(right, int):
        return True  # two symbols: the check of derived sizes sees to it
    if size.op == "mul":
        return right != 0 and value % right == 0 and _bind(left, value // right, symbols)
    return _bind(left, value - right if size.op == "add" else value + right, symbols)


def _without_fakes(entry: tuple[str, Desc, Any]) -> tuple[str, Desc, Any]:
    """Keep only plain values to compare with: fake tensors and symbols are described already."""
    name, desc, value = entry
    plain = value is None or isinstance(value, bool | int | float | str)
    return name, desc, value if plain else _ANY


def _equal(expected: Any, value: Any) -> bool:
    return type(expected) is type(value) and expected == value


def _range(constraint: Any) -> tuple[int, int | None]:
    low = int(constraint.lower) if constraint.lower.is_Integer else 0
    high = int(constraint.upper) if constraint.upper.is_Integer else None
    return low, high
