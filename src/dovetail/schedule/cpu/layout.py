"""What layouts cost on a processor, in seconds: library convolutions, and changing a layout.

PyTorch's convolutions (oneDNN's) take channels-last tensors as they are, and copy others to a
layout of their own and back. Weights that many channels meet on small images are faster row-major,
however they lie: the library has other kernels for them. Measured on one thread of an x86-64-v4;
the same for all processors, because they share one Program.
"""

from __future__ import annotations

import math

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.cpu.convolution import WIDE

# Seconds an element: 64 x 64 x 3 x 3 weights take a generated kernel 5.5 us, the library 24.
REFORMAT = 0.15e-9
_LIBRARY_REORDER = 0.65e-9
# Seconds an element of the result that a transposed convolution of each channel by itself takes
# longer channels-last: 64 channels by 4 x 4 from 16 x 16 take 270 us for 230.
_SPREAD_ALONE = 0.7e-9
# Seconds an element that a kernel takes to write a transposed convolution whose taps are apart to
# a row-major result, for which it writes each element by itself.
SCATTER = 3e-9
# Seconds a weight that channels-last takes longer: 512 x 512 x 3 x 3 at 7 x 7 takes 5.3 ms for 3.3.
_HEAVY = 0.85e-9
# Weights from which on that is so: constants, and those that are laid out at each call.
_HEAVY_CONSTANT, _HEAVY_VARYING = 1 << 20, 1 << 18


# What a library's call costs beside its work: the call itself, and an element of its result that
# is written, read and written again by what follows.
_CALL, _PASS = 30e-6, 0.2e-9
# Multiply-adds of float32 that a library does in a second on one core, called by PyTorch, with
# vectors of any width; of each channel by itself, for a byte of a vector (benchmarks/autotune.py).
_RATE, _DEPTHWISE_RATE = 55e9, 0.7e9
# The same with vectors of 32 bytes, of more taps of fewer channels, which it gathers first.
_GATHERED_RATE, _GATHERED_TAPS, _GATHERED_CHANNELS = 45e9, 10, 16
# Seconds to lay out a weight, which it does at each call: of one tap, and of several.
_WEIGHT, _WEIGHT_OF_TAPS = 0.35e-9, 0.8e-9


def library_seconds(call: OpCall, target: Target, *, constant: bool) -> tuple[float, float] | None:
    """What a library takes for a convolution, row-major and channels-last; None: it is none."""
    found = convolution_seconds(call, constant=constant)
    if found is None:
        return None
    weight = call.args[1]
    assert isinstance(weight, Ref)
    assert isinstance(weight.desc, TensorDesc)
    assert isinstance(call.output, TensorDesc)
    made = math.prod(call.output.shape)  # type: ignore[arg-type]
    each = _WEIGHT if math.prod(weight.desc.shape[2:]) == 1 else _WEIGHT_OF_TAPS  # type: ignore[arg-type]
    seconds = (
        _CALL + _PASS * made + made * _terms(call, weight.desc) / _rate(call, weight.desc, target)
    )
    weights = each * (weight.desc.numel or 0)
    row_major = seconds if found[1] else seconds + weights  # heavy ones are read as they lie
    return found[0] + row_major, found[1] + seconds + weights


def _terms(call: OpCall, weight: TensorDesc) -> float:
    """Products of a sum, in the mean where a convolution is transposed and skips pixels."""
    first, second, *taps = map(int, weight.shape)  # type: ignore[arg-type]
    if not call.args[6]:
        return second * math.prod(taps)
    steps = math.prod(_each(call.args[3], len(taps)))
    return first / int(call.args[8]) * math.prod(taps) / steps


def _each(given: object, rank: int) -> tuple[int, ...]:
    """A number for each dimension."""
    listed = given if isinstance(given, tuple) else (given,)
    return tuple(map(int, listed * rank if len(listed) == 1 else listed))


def _rate(call: OpCall, weight: TensorDesc, target: Target) -> float:
    """Multiply-adds that a library does in a second."""
    if _is_alone(call, weight):
        return _DEPTHWISE_RATE * target.vector_bytes
    _, inputs, *taps = map(int, weight.shape)  # type: ignore[arg-type]
    gathers = math.prod(taps) >= _GATHERED_TAPS and inputs < _GATHERED_CHANNELS
    plain = call.args[8] == 1 and not call.args[6]
    return _GATHERED_RATE if plain and gathers and target.vector_bytes < WIDE else _RATE


def _is_alone(call: OpCall, weight: TensorDesc) -> bool:
    """Whether each channel is convolved by itself."""
    return weight.shape[1] == 1 and call.args[8] == weight.shape[0]


def convolution_seconds(call: OpCall, *, constant: bool) -> tuple[float, float] | None:
    """What the choice adds to a library convolution's time, row-major and channels-last.

    None: there is no choice. ``constant``: its weights are laid out once.
    """
    if call.op != "aten.convolution.default" or not isinstance(call.output, TensorDesc):
        return None
    descs = [arg.desc if isinstance(arg, Ref) else None for arg in call.args[:2]]
    known = [d for d in (*descs, call.output) if isinstance(d, TensorDesc) and d.rank == 4]
    if len(known) < 3 or not all(d.is_static and d.device == "cpu" for d in known):
        return None
    if call.output.dtype not in ("float32", "bfloat16"):
        return None
    image, weights, made = (math.prod(d.shape) for d in known)  # type: ignore[arg-type]
    if call.args[6] and _is_alone(call, known[1]):
        return 0.0, _SPREAD_ALONE * made
    heavy = weights > (_HEAVY_CONSTANT if constant else _HEAVY_VARYING)
    moved = image + made + (0 if constant or heavy else weights)
    return _LIBRARY_REORDER * moved, _HEAVY * weights if heavy else 0.0
