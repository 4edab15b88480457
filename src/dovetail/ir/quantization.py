"""What the numbers of a quantised tensor stand for: ``(number - zero_point) * scale``.

A scale and a zero point hold for a block of elements: for the whole tensor, for a channel, or for
a group of neighbours along an axis, as ``block`` says. One that is not the same for all elements
is a tensor of its own, with an element for each block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail.errors import UnsupportedGraph
from dovetail.ir.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dovetail.ir.call import Ref
    from dovetail.ir.tensor import TensorDesc

# Types that a quantised number can stand for.
REAL = ("float16", "bfloat16", "float32", "float64")


class InvalidQuantization(UnsupportedGraph):
    """Parameters that no quantised tensor can have."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Parameters of a quantised tensor.

    ``block`` has how many neighbours along each dimension share a scale and a zero point, 0 for
    all of them. ``scale`` and ``zero_point`` are numbers, or name the values that hold one for
    each block. The numbers lie between ``least`` and ``greatest``; ``real`` is the type of what
    they stand for. Dimension ``n`` of a value that holds scales goes along dimension ``axes[n]``.
    """

    block: tuple[int, ...]
    scale: float | Ref
    zero_point: int | Ref
    least: int
    greatest: int
    real: str = "float32"
    axes: tuple[int, ...] = ()

    @property
    def is_per_tensor(self) -> bool:
        """Whether one scale and one zero point hold for all elements."""
        return not any(self.block)

    @property
    def axis(self) -> int | None:
        """The only dimension along which scales differ, for per-channel ones; else None."""
        differ = [n for n, size in enumerate(self.block) if size]
        return differ[0] if len(differ) == 1 else None

    def refs(self) -> Iterator[Ref]:
        """The values that hold scales and zero points."""
        yield from (v for v in (self.scale, self.zero_point) if not isinstance(v, int | float))

    def permuted(self, dims: tuple[int, ...]) -> Quantization:
        """Of the same tensor with its dimensions in another order."""
        block, axes = (self.block[d] for d in dims), (dims.index(a) for a in self.axes)
        return replace(self, block=tuple(block), axes=tuple(axes))

    def renamed(self, change: Callable[[Ref], Ref]) -> Quantization:
        """The same with the values of scales and zero points by other names."""
        scale = self.scale if isinstance(self.scale, float) else change(self.scale)
        zero = self.zero_point if isinstance(self.zero_point, int) else change(self.zero_point)
        return replace(self, scale=scale, zero_point=zero)

    def spread(
        self, shape: Sequence[int], scales: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of scales, as a tensor of the rank of the one that they are of.

        ``scales`` has the strides of the value that holds them.
        """
        sizes = zip(self.block, shape, strict=True)
        strides = [0] * len(self.block)
        for axis, stride in zip(self.axes, scales, strict=False):
            strides[axis] = stride
        return tuple(n // size if size else 1 for size, n in sizes), tuple(strides)

    def __str__(self) -> str:
        block = "" if self.is_per_tensor else f" of {'x'.join(map(str, self.block))}"
        return f"{{{self.scale} {self.zero_point}{block} in {self.least}..{self.greatest}}}"


def verify_quantization(given: Quantization, desc: TensorDesc) -> None:
    """InvalidQuantization says what cannot be of a tensor's parameters."""

    def require(holds: bool, problem: str) -> None:
        if not holds:
            raise InvalidQuantization(f"the quantization of a tensor: {problem}")

    row = DTYPES.get(desc.dtype)
    require(
        row is not None and row.kind in ("int", "uint") and row.bits <= _MOST_BITS,
        f"{desc.dtype} is no integer type of at most {_MOST_BITS} bits",
    )
    assert row is not None
    low = -(1 << (row.bits - 1)) if row.kind == "int" else 0
    require(
        low <= given.least <= given.greatest < low + (1 << row.bits),
        f"numbers in {given.least}..{given.greatest}, which {desc.dtype} does not hold",
    )
    require(
        len(given.block) == desc.rank,
        f"blocks of {len(given.block)} dimensions in a tensor of {desc.rank}",
    )
    for size, length in zip(given.block, desc.shape, strict=True):
        require(0 <= size < 1 << 31, f"a block of {size} elements")
        require(not size or isinstance(length, int), f"blocks of {size} along a dynamic size")
        whole = not size or not isinstance(length, int) or length % size == 0
        require(whole, f"blocks of {size} elements in {length}")
    if isinstance(given.scale, float):
        require(given.is_per_tensor, "one scale for several blocks")
        usable = math.isfinite(given.scale) and given.scale > 0
        require(usable, f"a scale of {given.scale}, which is no number above 0")
    if isinstance(given.zero_point, int):
        low, high = given.least, given.greatest
        require(-(1 << 31) <= given.zero_point < 1 << 31, f"a zero point of {given.zero_point}")
        require(
            low <= given.zero_point <= high or given.zero_point == 0,
            f"a zero point of {given.zero_point}, which is not in {low}..{high}",
        )
    along = sorted(n for n, size in enumerate(given.block) if size)
    require(sorted(given.axes) == along, f"scales along {given.axes}, and blocks along {along}")
    require(given.real in REAL, f"it stands for {given.real}, which is no floating-point type")


_MOST_BITS = 32


def quantization_to_json(given: Quantization, name: Callable[[Ref], Any]) -> dict[str, Any]:
    """As JSON has it; ``name`` writes the values that hold scales."""

    def number(value: float | Ref) -> Any:
        return value if isinstance(value, int | float) else {"ref": name(value)}

    return {
        "block": list(given.block),
        "scale": number(given.scale),
        "zero_point": number(given.zero_point),
        "range": [given.least, given.greatest],
        "real": given.real,
        "axes": list(given.axes),
    }


def quantization_from_json(data: Any, ref: Callable[[Any], Ref]) -> Quantization:
    """What ``quantization_to_json`` wrote; ValueError and its like for anything else."""

    def number(value: Any, kind: Callable[[Any], Any]) -> Any:
        return ref(value["ref"]) if isinstance(value, dict) else kind(value)

    least, greatest = map(int, data["range"])
    scale, zero = number(data["scale"], float), number(data["zero_point"], int)
    block, axes = (tuple(map(int, data[key])) for key in ("block", "axes"))
    return Quantization(block, scale, zero, least, greatest, str(data["real"]), axes)
