"""A kernel that sums a few products of each channel, seen as a convolution of channels apart."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import Apply, Axis, Instruction, Kernel, Load, Position, Reduce
from dovetail.ir.kernel_convolution import is_plain, is_read, places_of


@dataclass(frozen=True, slots=True)
class KernelDepthwise:
    """Σ over ``taps`` of ``image`` times ``weight``; both are dense along ``channels``.

    ``places`` are what the image's mask is computed by: they depend on pixels and taps alone.
    """

    total: Reduce
    image: Load
    weight: Load
    places: tuple[Instruction, ...]
    pixels: Axis  # that tiles go along: neighbours have places of the image in common
    channels: Axis
    taps: tuple[Axis, ...]


def kernel_depthwise(kernel: Kernel) -> KernelDepthwise | None:
    """The convolution of each channel by itself that a kernel is made of; None where it is none."""
    loops = [loop for loop in kernel.loops if loop.axes]
    if len(loops) != 1:
        return None
    body, taps = loops[0].body, loops[0].axes
    named = {i.name: i for i in body}
    sums = [i for i in body if isinstance(i, Reduce)]
    if len(sums) != 1 or sums[0].op != "sum" or sums[0].dtype not in FLOATS:
        return None
    times = named.get(sums[0].args[0])
    if not isinstance(times, Apply) or times.op != "mul":
        return None
    factors = [named.get(name) for name in times.args]
    for image, weight in (factors, factors[::-1]):
        if isinstance(image, Load) and isinstance(weight, Load) and image != weight:
            places = places_of(body, image, {sums[0], times, image, weight})
            if places is not None and is_plain(kernel, weight) and is_read(kernel, image):
                found = _placed(kernel, sums[0], image, weight, places, taps)
                if found is not None:
                    return found
    return None


def _placed(
    kernel: Kernel,
    total: Reduce,
    image: Load,
    weight: Load,
    places: tuple[Instruction, ...],
    taps: tuple[Axis, ...],
) -> KernelDepthwise | None:
    """With its axes, by what moves along each."""
    deciding = {name for i in places if isinstance(i, Position) for name, _ in i.index.axes}
    dense = [
        a
        for a in kernel.axes
        if a.name not in deciding and image.index.stride(a.name) == weight.index.stride(a.name) == 1
    ]
    moving = [
        a
        for a in kernel.axes
        if a not in dense and image.index.stride(a.name) and not weight.index.stride(a.name)
    ]
    if len(dense) != 1 or not moving or image.index.values or not all(_is_small(a) for a in taps):
        return None
    nearest = min(moving, key=lambda a: image.index.stride(a.name))  # type: ignore[arg-type,return-value]
    return KernelDepthwise(total, image, weight, places, nearest, dense[0], taps)


def _is_small(axis: Axis) -> bool:
    return isinstance(axis.extent, int) and 0 < axis.extent <= 16
