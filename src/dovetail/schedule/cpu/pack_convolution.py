"""Convolutions of our own: which they are, and their weights as kernels read them.

A kernel reads vectors of weights along the channels of its result, so weights of [O, I, …] are laid
out as […, I, O]: a tensor of the same shape with other strides, of which a convolution is still one
of ATen's. Those of constants are made once (``place/prepare.py``). Rows of a power of two get gaps
between them: a column of them would meet few sets of a cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dovetail.ir.affine import mul
from dovetail.ir.call import Attr, OpCall, Ref, leaves
from dovetail.ir.layout import Layout
from dovetail.ir.segment import Segment
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.calls import lowered_alone
from dovetail.lower.panels import NAME as PANELS
from dovetail.lower.winograd import NAME as WINOGRAD
from dovetail.schedule.cpu.convolution import WIDE, own_seconds, winograd_seconds
from dovetail.schedule.cpu.depthwise import depthwise_seconds
from dovetail.schedule.cpu.layout import library_seconds
from dovetail.schedule.cpu.library import library_reason
from dovetail.schedule.cpu.transform_weights import WeightTransform
from dovetail.schedule.images import channels_last, is_channels_last
from dovetail.schedule.way import LIBRARY, Way

_CONVOLUTION = "aten.convolution.default"
# Seconds that Winograd's algorithm has to gain: it is two kernels more to compile and to start, and
# weights four times as large.
_WORTH = 2.5e-5
# Seconds to lay out a weight at each call.
_VARYING = 0.5e-9
# Weights from which on those that vary are laid out in narrow panels, which are written sooner:
# more than caches hold.
_MANY_WEIGHTS = 1 << 18
# Columns of a panel, the best first: vectors of 64 bytes that fill registers with accumulators (two
# by twelve pixels); one line where vectors are half of one, so that none is read in two turns.
PANEL_WIDTHS, NARROW_WIDTHS = (32, 48, 16), (16, 32, 48)
_ROW_MAJOR = {"memory_format": Attr("memory_format", "contiguous_format")}
# The largest error of a result by Winograd's algorithm, by the side of its tiles, against float64
# and beside the root mean square of all results, for images and weights of any one scale.
WINOGRAD_ERRORS = {2: 4e-6, 4: 2e-5}
_ROW, _GAP = 128, 16  # columns a multiple of which makes rows of a power of two, nearly; a line
_GROUPS = 16  # channels of a convolution of each by itself: a vector of every processor
# Channels of an image for which a padded copy is made: taps of fewer are walked together then.
_FEW_CHANNELS = 16


@dataclass(frozen=True, slots=True)
class Convolution:
    """A call that may be ours."""

    image: TensorDesc
    weight: TensorDesc
    made: TensorDesc
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    holes: tuple[int, ...]
    transposed: bool
    groups: int

    @property
    def outputs(self) -> int:
        """Channels of the result in a group."""
        return int(self.made.shape[1]) // self.groups  # type: ignore[arg-type]

    @property
    def inputs(self) -> int:
        """Channels of the image in a group."""
        return int(self.image.shape[1]) // self.groups  # type: ignore[arg-type]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved by itself."""
        return self.groups >= _GROUPS and (self.inputs, self.outputs, self.transposed) == (
            1,
            1,
            False,
        )

    @property
    def is_spread(self) -> bool:
        """Whether each result of a transposed convolution has one tap (lower/convolution.py)."""
        alike = tuple(self.weight.shape[2:]) == self.steps and not any(self.pads)
        sides = zip(self.image.shape[2:], self.steps, self.made.shape[2:], strict=True)
        return self.transposed and alike and all(n * step == size for n, step, size in sides)  # type: ignore[operator]

    @property
    def taps(self) -> int:
        """Positions of the weight."""
        return math.prod(map(int, self.weight.shape[2:]))  # type: ignore[arg-type]

    @property
    def has_few_channels(self) -> bool:
        """Whether an image is padded for it, if at all, so that taps of a row lie together."""
        return self.inputs < _FEW_CHANNELS and self.groups == 1 and not self.transposed

    @property
    def places(self) -> int:
        """Places of the image that a kernel looks up for a pixel."""
        if self.is_spread:
            return 1
        if self.has_few_channels and self.holes[-1] == 1:
            return self.taps // int(self.weight.shape[-1])  # type: ignore[arg-type]
        return self.taps

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        return math.prod(map(int, self.weight.shape))  # type: ignore[arg-type]

    @property
    def pixels(self) -> int:
        """Positions of the result."""
        return math.prod(map(int, (self.made.shape[0], *self.made.shape[2:])))  # type: ignore[arg-type]


def convolution_of_call(call: OpCall, target: Target) -> Convolution | None:
    """A convolution that generated code could compute; None for any other call."""
    if call.op != _CONVOLUTION or len(call.args) != 9 or "fma" not in target.features:
        return None
    image, weight = (arg.desc if isinstance(arg, Ref) else None for arg in call.args[:2])
    made = call.output
    for desc in (image, weight, made):
        if not isinstance(desc, TensorDesc) or desc.rank != 4 or not desc.is_static:
            return None
        if desc.dtype != "float32" or 0 in desc.shape:
            return None
    assert isinstance(image, TensorDesc)
    assert isinstance(weight, TensorDesc)
    assert isinstance(made, TensorDesc)
    steps, pads, holes = (_numbers(arg, 2) for arg in call.args[3:6])
    found = Convolution(
        image,
        weight,
        made,
        steps,
        pads,
        holes,
        bool(call.args[6]),
        int(call.args[8]),
    )
    return found if (found.outputs > 1 or found.is_depthwise) and found.pixels > 1 else None


def _numbers(given: object, rank: int) -> tuple[int, ...]:
    listed = tuple(given) if isinstance(given, tuple) else (given,)
    return tuple(map(int, listed * rank if len(listed) == 1 else listed))


def own_choice(call: OpCall, target: Target, *, constant: bool, error: float = 0.0) -> float | None:
    """Seconds that generated code takes for a channels-last convolution; None: it had better not.

    ``constant``: its weights are laid out once, and transformed where that is faster and the
    ``error`` that may be allows it.
    """
    found = convolution_of_call(call, target)
    if found is None:
        return None
    if found.is_depthwise:
        return depthwise_seconds(found.pixels, found.groups, found.taps, target)
    if found.transposed and not found.is_spread and math.prod(found.steps) > 1:
        return None  # its kernel would skip most of its products
    sums = found.inputs * (1 if found.is_spread else found.taps)
    seconds = found.groups * own_seconds(found.pixels, found.outputs, sums, found.places, target)
    if constant:
        seconds = min(seconds, winograd_choice(found, target, error)[0])
    else:
        seconds += _VARYING * found.weights
    return seconds


def winograd_size(found: Convolution, target: Target, error: float) -> int:
    """The side of tiles for which Winograd's algorithm is fastest; 0: for none."""
    return winograd_choice(found, target, error)[1]


def winograd_choice(found: Convolution, target: Target, error: float) -> tuple[float, int]:
    """The seconds of the fastest way, and the side of its tiles; 0: without any."""
    plain = not found.transposed and found.groups == 1 and found.weight.shape[2:] == (3, 3)
    if not plain or {*found.steps, *found.holes} != {1}:
        return math.inf, 0
    images, _, *sides = map(int, found.made.shape)  # type: ignore[arg-type]
    best = own_seconds(found.pixels, found.outputs, found.inputs * 9, found.places, target), 0
    for size, bound in WINOGRAD_ERRORS.items():
        tiles = images * math.prod(-(-side // size) for side in sides)
        if bound <= error:
            seconds = winograd_seconds(size, tiles, found.outputs, found.inputs, target)
            best = min(best, (seconds + _WORTH, size))
    return best


def pack_convolutions(
    segment: Segment,
    target: Target,
    once: frozenset[str],
    error: float = 0.0,
    *,
    libraries: bool = True,
) -> Segment:
    """The segment with weights laid out for the convolutions that are ours.

    Winograd's algorithm may be used where its ``error`` is no more than this (WINOGRAD_ERRORS).
    Without ``libraries`` there is nobody to be faster.
    """
    packer = _WeightPacker(segment, target, once, error, libraries)
    calls = [made for call in segment.calls for made in packer.rewritten(call)]
    if not packer.packed:
        return segment
    used = {ref.name for call in calls for ref in call.refs()}
    used |= {leaf.name for leaf in leaves(segment.outputs) if isinstance(leaf, Ref)}
    replaced = {weight.name for weight, _ in packer.packed if weight.name in packer.sources} - used
    return replace(segment, calls=tuple(call for call in calls if call.name not in replaced))


@dataclass
class _WeightPacker:
    segment: Segment
    target: Target
    once: frozenset[str]
    error: float = 0.0
    libraries: bool = True
    packed: dict[tuple[Ref, int], Ref] = field(default_factory=dict)
    transformed: dict[tuple[Ref, int], Ref] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {i.name for i in self.segment.inputs} | {c.name for c in self.segment.calls}
        # Weights that were laid out for a library a moment ago.
        clones = [c for c in self.segment.calls if c.op == "aten.clone.default"]
        self.sources = {c.name: c.args[0] for c in clones if isinstance(c.args[0], Ref)}

    def rewritten(self, call: OpCall) -> Iterator[OpCall]:
        """A call, or what stands for it."""
        found = convolution_of_call(call, self.target)
        if found is None or not self._is_ours(call, found):
            yield call
            return
        image, weight = call.args[:2]
        assert isinstance(image, Ref)
        assert isinstance(weight, Ref)
        source, way = self.sources.get(weight.name, weight), Way.parse(call.candidate)
        size = self._winograd_size(found, way) if source.name in self.once else 0
        varies = source.name not in self.once
        width = 0 if size else panel_width(found, self.target, way, varies=varies)
        if (weight, width) not in self.packed:
            made = [*self._panels(source, width)] if width else []
            made = made or [*self._pack(source, transposed=found.transposed)]
            self.packed[weight, width] = _ref(made[-1])
            yield from made
        packed = self.packed[weight, width]
        pads: object = call.args[4]
        if any(found.pads) and found.has_few_channels:
            padded = self._padded(image, found.pads)
            yield padded
            image, pads = _ref(padded), (0,) * len(found.pads)
        given = (image, packed, *call.args[2:4], pads, *call.args[5:])
        if not size:
            yield replace(call, op=PANELS if width else call.op, args=given)
            return
        if (source, size) not in self.transformed:
            transform = WeightTransform(source, size, self._call)
            self.transformed[source, size] = transform.result
            yield from transform.calls
        more = self.transformed[source, size], size
        yield replace(call, op=WINOGRAD, args=(*given, *more))

    def _winograd_size(self, found: Convolution, way: Way | None) -> int:
        """The side of its tiles; 0: none, by the rules unless measuring chose."""
        return winograd_size(found, self.target, self.error) if way is None else way.winograd

    def _is_ours(self, call: OpCall, found: Convolution) -> bool:
        way = Way.parse(call.candidate)
        if not can_be_packed(call, found, self.target):
            return False
        if way is not None or not self.libraries:
            return way != LIBRARY or not self.libraries
        weight = call.args[1]
        assert isinstance(weight, Ref)
        constant = self.sources.get(weight.name, weight).name in self.once
        return _is_faster(call, self.target, constant=constant, error=self.error)

    def _pack(self, weight: Ref, *, transposed: bool) -> Iterator[OpCall]:
        """The same weights, dense along the channels of the result."""
        desc, stem = _tensor(weight.desc), f"{weight.name}_packed"
        order = _order(desc.rank, transposed)
        back = tuple(order.index(axis) for axis in range(desc.rank))
        permuted = _permuted(desc, order)
        first = self._call(stem, "aten.permute.default", (weight, order), permuted)
        columns = int(permuted.shape[-1])  # type: ignore[arg-type]
        dense = replace(permuted, strides=contiguous_strides(permuted.shape))
        if columns % _ROW:
            copy = self._call(stem, "aten.clone.default", (_ref(first),), dense)
            copy = replace(copy, kwargs=_ROW_MAJOR)
            yield from (first, copy)
        else:
            shape = (*permuted.shape[:-1], columns + _GAP)
            wide = replace(permuted, shape=shape, strides=contiguous_strides(shape))
            args = (_ref(first), (0, _GAP), 0.0)
            pad = self._call(stem, "aten.constant_pad_nd.default", args, wide)
            part = replace(dense, strides=wide.strides)
            rest = (_ref(pad), desc.rank - 1, 0, columns)
            copy = self._call(stem, "aten.slice.Tensor", rest, part)
            yield from (first, pad, copy)
        restored = _permuted(_tensor(copy.output), back)
        yield self._call(stem, "aten.permute.default", (_ref(copy), back), restored)

    def _panels(self, weight: Ref, width: int) -> Iterator[OpCall]:
        """The same weights as [O / W, W, I, …], dense along the second axis.

        Constant ones lie tap by tap, as they are read; for others it is a plain transposition that
        leaves channels and taps as they are.
        """
        desc, stem = _tensor(weight.desc), f"{weight.name}_panels"
        outputs, *sizes = map(int, desc.shape)  # type: ignore[arg-type]
        shape = (outputs // width, width, *sizes)
        strides = (mul(desc.strides[0], width), *desc.strides)
        split = replace(desc, shape=shape, strides=strides)
        view = self._call(stem, "aten.view.default", (weight, shape), split)
        taps = range(2, desc.rank)
        rest = [*taps, 1] if weight.name in self.once else [1, *taps]
        order = (0, *(axis + 1 for axis in rest), 1)
        permuted = _permuted(split, order)
        first = self._call(stem, "aten.permute.default", (_ref(view), order), permuted)
        parts = [(0, width), *((axis, 1) for axis in rest), (0, 1)]
        layout = Layout.of(desc.shape, parts)
        dense = replace(permuted, strides=contiguous_strides(permuted.shape), layout=layout)
        copy = self._call(stem, "aten.clone.default", (_ref(first),), dense)
        back = tuple(order.index(axis) for axis in range(len(shape)))
        restored = replace(_permuted(_tensor(copy.output), back), layout=None)
        last = self._call(stem, "aten.permute.default", (_ref(copy), back), restored)
        yield from (view, first, replace(copy, kwargs=_ROW_MAJOR), last)

    def _padded(self, image: Ref, pads: tuple[int, ...]) -> OpCall:
        """An image with zeros around it."""
        desc = _tensor(image.desc)
        spaces = zip(desc.shape[2:], pads, strict=True)
        shape = (*desc.shape[:2], *(int(size) + 2 * pad for size, pad in spaces))  # type: ignore[arg-type]
        wide = replace(desc, shape=shape, strides=channels_last(shape), layout=None)
        order = [(axis, 1) for axis in range(desc.rank)]
        halo = Layout.in_memory(desc.shape, (0, 0, *pads), order, wide)
        wide = replace(wide, layout=halo)
        around = tuple(pad for pad in reversed(pads) for _ in range(2))
        args = (image, around, 0.0)
        return self._call(f"{image.name}_padded", "aten.constant_pad_nd.default", args, wide)

    def _call(self, stem: str, op: str, args: tuple[object, ...], output: TensorDesc) -> OpCall:
        name = stem
        while name in self.names:
            name += "_"
        self.names.add(name)
        return OpCall(name, op, args, {}, output)


def can_be_packed(call: OpCall, found: Convolution, target: Target) -> bool:
    """Whether a convolution's kernel would read its weights laid out otherwise than they are."""
    if not is_channels_last(found.image) or not is_channels_last(found.made):
        return False
    packed = _packed_strides(found.weight, found.transposed)
    if found.weight.strides == packed or not (found.is_spread or _is_left(call, target)):
        return False  # its weights lie so already
    weight = call.args[1]
    assert isinstance(weight, Ref)
    desc = replace(found.weight, strides=packed)
    there = replace(call, args=(call.args[0], replace(weight, desc=desc), *call.args[2:]))
    return not _is_left(there, target)


def _is_left(call: OpCall, target: Target) -> bool:
    """Whether the rules leave a call to a library."""
    lowered = lowered_alone(call)
    return bool(lowered.refusal or library_reason(lowered.contractions, target))


def _is_faster(call: OpCall, target: Target, *, constant: bool, error: float) -> bool:
    """Whether the cost model has a kernel take no longer than a library."""
    seconds = own_choice(call, target, constant=constant, error=error)
    known = library_seconds(call, target, constant=constant)
    return seconds is not None and known is not None and seconds <= known[1]


def panel_width(
    found: Convolution, target: Target, way: Way | None = None, *, varies: bool = False
) -> int:
    """Columns of a panel; 0 where weights are one, or no panels divide them."""
    if found.transposed or found.groups > 1:
        return 0
    many = varies and found.weights >= _MANY_WEIGHTS
    wanted = NARROW_WIDTHS if many or target.vector_bytes < WIDE else PANEL_WIDTHS
    given = wanted if way is None or way.panels is None else (way.panels,)
    width = next((n for n in given if n and found.outputs % n == 0), 0)
    return width if width < found.outputs else 0


def _order(rank: int, transposed: bool) -> tuple[int, ...]:
    """The axes of weights, those of the taps first and the result's channels last."""
    return (*range(2, rank), 0, 1) if transposed else (*range(2, rank), 1, 0)


def _packed_strides(desc: TensorDesc, transposed: bool) -> tuple[int, ...]:
    order = _order(desc.rank, transposed)
    dense = contiguous_strides([desc.shape[axis] for axis in order])
    return tuple(int(dense[order.index(axis)]) for axis in range(desc.rank))  # type: ignore[arg-type]


def _permuted(desc: TensorDesc, order: tuple[int, ...]) -> TensorDesc:
    return replace(
        desc,
        shape=tuple(desc.shape[d] for d in order),
        strides=tuple(desc.strides[d] for d in order),
    )


def _tensor(desc: object) -> TensorDesc:
    assert isinstance(desc, TensorDesc)
    return desc


def _ref(call: OpCall) -> Ref:
    return Ref(call.name, call.output)
