"""A kernel that sums products over several axes, seen as a convolution.

What is multiplied is an element of an image at a place that pixel and tap decide, perhaps under a
mask (zero where there is no such place), and a weight. Dilated, strided, grouped and transposed
convolutions of every rank are such kernels; so is a matrix product whose rows are two axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Store,
)
from dovetail.ir.kernel_product import kernel_product


@dataclass(frozen=True, slots=True)
class KernelConvolution:
    """Σ over taps and channels of ``image`` times ``weight``, at each point of the kernel's axes.

    ``places`` are what the image's mask and gathered index are computed by: they depend on pixels
    and taps, never on ``channels``, along which the image and the weight are walked.
    """

    total: Reduce
    image: Load
    weight: Load
    places: tuple[Instruction, ...]
    pixels: tuple[Axis, ...]  # that the image moves along and the weight does not
    columns: Axis  # that weights and results are dense along
    taps: tuple[Axis, ...]
    channels: Axis
    # Sums of a kernel that has several of the same kind, the first among them; places in both
    # operands are as far from each other for all that follow one another.
    more: tuple[Reduce, ...] = ()
    apart: tuple[int, int] = (0, 0)  # elements of the image, and of the weights

    @property
    def totals(self) -> tuple[Reduce, ...]:
        """All sums."""
        return self.more or (self.total,)

    @property
    def sums(self) -> tuple[Axis, ...]:
        """All that is summed over, the innermost last."""
        return (*self.taps, self.channels)

    @property
    def is_masked(self) -> bool:
        """Whether there may be no element of the image at a place."""
        return self.image.mask is not None


def pixel_step(found: KernelConvolution) -> int | None:
    """How far each pixel is from the one before, where that is the same for all of a kernel."""
    index = found.image.index
    if found.is_masked or found.places or index.values:
        return None
    steps = [int(index.stride(a.name)) for a in found.pixels]  # type: ignore[arg-type]
    follows = zip(pairwise(steps), found.pixels[1:], strict=True)
    return steps[-1] if all(a == b * size_of(axis) for (a, b), axis in follows) else None


def size_of(axis: Axis) -> int:
    """The extent of an axis, which is known."""
    assert isinstance(axis.extent, int)
    return axis.extent


def kernel_convolution(kernel: Kernel) -> KernelConvolution | None:
    """The convolution that a kernel is made of; None where it is none, or more than that.

    A matrix product of one axis of rows is none. All else that such a kernel has is done once for
    each element of the result.
    """
    loops = [loop for loop in kernel.loops if loop.axes]
    if len(loops) != 1:
        return None
    several = _several(kernel, loops[0])
    if several is not None:
        return several
    named = {i.name: i for i in loops[0].body}
    sums = [i for i in loops[0].body if isinstance(i, Reduce)]
    if len(sums) != 1 or sums[0].op != "sum" or sums[0].dtype not in FLOATS:
        return None
    times = named.get(sums[0].args[0])
    if not isinstance(times, Apply) or times.op != "mul" or times.dtype != sums[0].dtype:
        return None
    factors = [named.get(name) for name in times.args]
    for image, weight in (factors, factors[::-1]):
        if isinstance(image, Load) and isinstance(weight, Load) and image != weight:
            places = places_of(loops[0].body, image, {sums[0], times, image, weight})
            if places is not None and is_plain(kernel, weight) and is_read(kernel, image):
                found = _placed(kernel, sums[0], image, weight, places, loops[0].axes)
                if found is not None and not _is_product(kernel, found):
                    return found
    return None


def _several(kernel: Kernel, loop: Loop) -> KernelConvolution | None:
    """Several sums of products at places that follow each other; None: there is one, or none."""
    sums = [i for i in loop.body if isinstance(i, Reduce)]
    if len(sums) < 2 or len(loop.body) != 4 * len(sums) or len(loop.axes) != 1:
        return None
    named, factors = {i.name: i for i in loop.body}, list[tuple[Load, Load]]()
    for total in sums:
        times = named.get(total.args[0])
        if (total.op, total.dtype) != ("sum", "float32") or not isinstance(times, Apply):
            return None
        image, weight = (named.get(name) for name in times.args)
        if times.op != "mul" or not isinstance(image, Load) or not isinstance(weight, Load):
            return None
        if not is_plain(kernel, image) or not is_plain(kernel, weight):
            return None
        factors.append((image, weight))
    (image, weight), apart = factors[0], _apart(factors)
    if apart is None:
        return None
    found = _placed(kernel, sums[0], image, weight, (), loop.axes)
    return None if found is None else replace(found, more=tuple(sums), apart=apart)


def _apart(factors: list[tuple[Load, Load]]) -> tuple[int, int] | None:
    """How far loads are from those before them, where that is always the same."""
    found = []
    for loads in zip(*factors, strict=True):
        if len({(i.buffer, frozenset(i.index.axes)) for i in loads}) != 1:
            return None
        offsets = [i.index.offset for i in loads]
        if not all(isinstance(n, int) for n in offsets):
            return None
        gaps = {b - a for a, b in pairwise(offsets)}
        if len(gaps) != 1:
            return None
        found.append(gaps.pop())
    return found[0], found[1]


def places_of(
    body: tuple[Instruction, ...], image: Load, rest: set[Instruction]
) -> tuple[Instruction, ...] | None:
    """What an image's place is computed by; None where a loop has more in it."""
    found = tuple(i for i in body if i not in rest)
    if not all(isinstance(i, Apply | Const | Position) for i in found):
        return None
    needed = set(image.uses).union(*(i.uses for i in found))
    return found if {i.name for i in found} <= needed else None


def is_plain(kernel: Kernel, load: Load) -> bool:
    """Whether a load is of memory that is only read, at a place that its index alone says."""
    return is_read(kernel, load) and load.mask is None and not load.index.values


def is_read(kernel: Kernel, load: Load) -> bool:
    """Whether a load is of memory that the kernel only reads, with strides that are known."""
    role = next(b.role for b in kernel.buffers if b.name == load.buffer)
    return role == "in" and all(isinstance(stride, int) for _, stride in load.index.axes)


def _placed(
    kernel: Kernel,
    total: Reduce,
    image: Load,
    weight: Load,
    places: tuple[Instruction, ...],
    sums: tuple[Axis, ...],
) -> KernelConvolution | None:
    """The convolution with its axes, by what moves along each."""
    deciding = {name for i in places for name, _ in _axes(i)}
    moving = deciding | {name for name, _ in image.index.axes}
    pixels = tuple(a for a in kernel.axes if a.name in moving and not _moves(weight, a))
    dense = [a for a in kernel.axes if a.name not in moving and weight.index.stride(a.name) == 1]
    walked = [a for a in sums if a.name not in deciding and image.index.stride(a.name) == 1]
    if not pixels or not dense or not walked:
        return None
    channels = walked[0]
    taps = tuple(a for a in sums if a is not channels)
    columns = next((a for a in dense if _is_stored_along(kernel, a)), dense[0])
    return KernelConvolution(total, image, weight, places, pixels, columns, taps, channels)


def _axes(i: Instruction) -> Iterator[tuple[str, object]]:
    if isinstance(i, Position):
        yield from i.index.axes


def _moves(load: Load, axis: Axis) -> bool:
    return load.index.stride(axis.name) != 0


def _is_stored_along(kernel: Kernel, axis: Axis) -> bool:
    stores = (i for i in kernel.instructions() if isinstance(i, Store))
    return any(s.index.stride(axis.name) == 1 for s in stores)


def _is_product(kernel: Kernel, found: KernelConvolution) -> bool:
    return len(found.pixels) == 1 and kernel_product(kernel) is not None
