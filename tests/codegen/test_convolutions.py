"""Convolutions in tiles of registers: right for every size, step, schedule and target."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dovetail import registry
from dovetail.errors import InvalidSchedule
from dovetail.ir import Input, Segment
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.kernel_convolution import kernel_convolution
from dovetail.ir.kernel_depthwise import kernel_depthwise
from dovetail.ir.kernel_product import kernel_product
from dovetail.ir.segment_verify import verify_segment
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.panels import NAME as PANELS
from dovetail.runtime.interpreter import Interpreter
from dovetail.schedule.build import Built
from dovetail.schedule.cpu import pack_convolution
from dovetail.schedule.cpu.pack_convolution import pack_convolutions
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.images import channels_last
from dovetail.schedule.plan import make_plan
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.tiles import ConvolutionTile, DepthwiseTile
from dovetail.schedule.verify_schedule import verify_schedule
from dovetail.testing.schedules import check_schedule
from tests.codegen.test_random_kernels import targets
from tests.differential import needs_code

pytestmark = needs_code
AVX512 = TARGETS["x86-64-v4"]


class Case:
    """One convolution with a bias and a rectifier, by its parameters."""

    def __init__(self, image, weight, step=1, pad=0, hole=1, transposed=False, groups=1):
        made = torch.convolution(
            torch.empty(image, device="meta"),
            torch.empty(weight, device="meta"),
            None,
            *([n, n] for n in (step, pad, hole)),
            transposed,
            [0, 0],
            groups,
        )
        self.numbers = ((step, step), (pad, pad), (hole, hole), transposed, (0, 0), groups)
        self.image, self.weight, self.made = image, weight, tuple(made.shape)

    @staticmethod
    def random(seed):
        """Any that has a result."""
        r = random.Random(seed)
        while True:
            groups, transposed = r.choice([1, 1, 2, 3, 16, 37]), r.random() < 0.25
            inputs, outputs = r.choice([1, 2, 5, 17, 20]), r.choice([2, 7, 16, 33])
            if groups > 3:
                inputs = outputs = 1
            size, taps = (r.randint(1, 9), r.randint(1, 9)), (r.randint(1, 3), r.randint(1, 3))
            pair = (inputs * groups, outputs) if transposed else (outputs * groups, inputs)
            step, pad, hole = r.randint(1, 3), r.randint(0, 2), r.randint(1, 2)
            image = (r.randint(1, 2), inputs * groups, *size)
            try:
                case = Case(image, (*pair, *taps), step, pad, hole, transposed, groups)
            except RuntimeError:
                continue
            if 1 < np.prod((case.made[0], *case.made[2:])) < 300:
                return case

    def segment(self):
        """Channels-last, as layouts are assigned before weights are packed."""
        x, y = (TensorDesc("float32", s, channels_last(s)) for s in (self.image, self.made))
        w = TensorDesc("float32", self.weight, torch.empty(self.weight).stride())
        b = TensorDesc("float32", (self.made[1],), (1,))
        given = {"x": x, "w": w, "b": b}
        inputs = tuple(Input(n, d, "tensor" if n == "x" else "constant") for n, d in given.items())
        refs = tuple(Ref(n, d) for n, d in given.items())
        calls = (
            OpCall("c", "aten.convolution.default", (*refs, *self.numbers), {}, y),
            OpCall("z", "aten.relu.default", (Ref("c", y),), {}, y),
        )
        return Segment("s", inputs, calls, (Ref("z", y),))

    def packed(self, error=0.0):
        """With weights as kernels read them, whatever that costs."""
        segment = pack_convolutions(self.segment(), AVX512, frozenset("wb"), error)
        verify_segment(segment)
        return segment

    def kernel(self):
        """The kernel of the convolution."""
        steps = make_plan(self.packed(), AVX512).steps
        kernels = [s.kernel for s in steps if isinstance(s, Built)]
        kinds = kernel_convolution, kernel_product, kernel_depthwise
        found = [k for k in kernels if any(kind(k) for kind in kinds)]
        assert len(found) == 1
        assert all(isinstance(s, Built) for s in steps)
        return found[0]

    def tile(self):
        """The tile of its schedule."""
        return make_schedule(self.kernel(), AVX512).register_tiles


@pytest.fixture(autouse=True)
def _always_ours(monkeypatch):
    """Whatever a library would take."""
    monkeypatch.setattr(pack_convolution, "own_choice", lambda *_, **__: 0.0)


def integers(kernel, seed=0):
    """Small numbers, whose sums are exact, for each buffer of a kernel."""
    g, found = np.random.default_rng(seed), {}
    accesses = [i for i in kernel.instructions() if hasattr(i, "buffer")]
    extents = {a.name: a.extent for a in kernel.all_axes()}
    for buffer in kernel.buffers:
        reach = 0
        for i in (i for i in accesses if i.buffer == buffer.name):
            steps = ((extents[name] - 1) * stride for name, stride in i.index.axes if stride > 0)
            reach = max(reach, abs(i.index.offset) + sum(steps) + 64 * len(i.index.values))
        found[buffer.name] = g.integers(-4, 5, reach + 1).astype("float32")
    return found


CASES = {
    "3x3": Case((1, 16, 7, 7), (48, 16, 3, 3), pad=1),
    "stride": Case((2, 5, 9, 8), (20, 5, 3, 2), step=2, pad=1),
    "stem": Case((1, 3, 15, 15), (24, 3, 7, 7), step=2, pad=3),
    "1x1": Case((1, 24, 6, 5), (40, 24, 1, 1)),
    "1x1_stride": Case((1, 24, 6, 5), (40, 24, 1, 1), step=2),
    "panels": Case((1, 16, 7, 7), (96, 16, 3, 3), step=2, pad=1),
    "1x1_panels": Case((2, 24, 6, 5), (64, 24, 1, 1)),
    "spread": Case((1, 6, 5, 4), (6, 20, 2, 2), step=2, transposed=True),
    "spread_grouped": Case((2, 12, 4, 3), (12, 16, 3, 3), step=3, transposed=True, groups=2),
    "dilated": Case((1, 4, 9, 9), (18, 4, 3, 3), pad=2, hole=2),
    "grouped": Case((1, 12, 6, 6), (40, 6, 3, 3), pad=1, groups=2),
    "transposed": Case((1, 6, 5, 4), (6, 20, 3, 3), pad=1, transposed=True),
    "depthwise": Case((2, 24, 6, 9), (24, 1, 3, 3), pad=1, groups=24),
    "depthwise_stride": Case((1, 33, 11, 10), (33, 1, 5, 3), step=2, pad=1, groups=33),
    "depthwise_dilated": Case((1, 16, 9, 9), (16, 1, 3, 3), pad=2, hole=2, groups=16),
    "depthwise_no_padding": Case((1, 48, 7, 7), (48, 1, 3, 3), groups=48),
    "depthwise_large": Case((1, 40, 9, 12), (40, 1, 7, 7), pad=3, groups=40),
    "depthwise_large_dilated": Case((2, 16, 14, 13), (16, 1, 7, 6), 2, pad=5, hole=2, groups=16),
    "long": Case((1, 300, 3, 3), (17, 300, 3, 3), pad=1),
    "long_run": Case((1, 20, 4, 40), (17, 20, 2, 30)),
}


PRODUCTS = ("1x1", "1x1_panels")  # of matrices


@pytest.mark.parametrize("name", CASES)
def test_kernels_on_every_target(name):
    kernel = CASES[name].kernel()
    for target in targets():
        schedule = make_schedule(kernel, target)
        if "fma" in target.features and name not in PRODUCTS:
            kind = DepthwiseTile if "depthwise" in name else ConvolutionTile
            assert isinstance(schedule.register_tiles, kind)
        assert parse_schedule(print_schedule(schedule)) == schedule
        check_schedule(kernel, schedule, target, integers(kernel))


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_convolutions(start):
    """Packed segments and their code against PyTorch's convolution of float64."""
    for seed in range(start, start + 10):
        compare(Case.random(seed), seed)


@pytest.mark.parametrize("name", ["panels", "1x1_panels", "spread", "spread_grouped"])
def test_weights_that_lie_otherwise(name):
    compare(CASES[name], 0)
    calls = {call.op for call in CASES[name].packed().calls}
    assert (PANELS in calls) == ("panels" in name)


def test_a_transposed_convolution_of_taps_apart_multiplies_once():
    """Each result has one tap: a loop over channels alone, without a mask."""
    found = kernel_convolution(CASES["spread"].kernel())
    assert found.taps == ()
    assert not found.is_masked


@pytest.mark.parametrize("groups", [1, 16])
def test_a_transposed_convolution_of_taps_that_meet_is_a_librarys(groups):
    """A kernel would skip three in four of 4 by 4 taps, pixel by pixel."""
    pair = (16, 16) if groups == 1 else (16, 1)
    case = Case((1, 16, 8, 8), (*pair, 4, 4), step=2, pad=1, transposed=True, groups=groups)
    calls = [s.call.op for s in make_plan(case.packed(), AVX512).steps if not isinstance(s, Built)]
    assert calls == ["aten.convolution.default"]


def compare(case, seed):
    """A packed segment and its code with PyTorch's convolution of float64."""
    segment, packed = case.segment(), case.packed()
    g = torch.Generator().manual_seed(seed)
    given = [torch.randn(i.desc.shape, generator=g) for i in segment.inputs]
    given[0] = given[0].to(memory_format=torch.channels_last)
    x, w, b = (t.double() for t in given)
    exact = torch.relu(torch.convolution(x, w, b, *map(_listed, case.numbers)))
    eager = torch.relu(torch.convolution(*given, *map(_listed, case.numbers)))
    limit = 2 * (eager - exact).abs().max() + 2e-6 * exact.abs().max()
    (interpreted,) = Interpreter(packed)([*given])
    assert (interpreted - exact).abs().max() <= limit
    backend = registry.get_backend("cpu")
    (ours,) = backend.load(backend.compile(packed))([*given])
    assert (ours - exact).abs().max() <= limit, case.__dict__


def _listed(number):
    return list(number) if isinstance(number, tuple) else number


def test_what_is_no_number_stays_where_it_is():
    """Zeros outside the image are multiplied by weights that are infinite, as PyTorch does."""
    kernel = CASES["3x3"].kernel()
    given = integers(kernel)
    found = kernel_convolution(kernel)
    given[found.image.buffer][5], given[found.weight.buffer][7] = np.nan, np.inf
    for target in targets():
        with np.errstate(invalid="ignore"):
            check_schedule(kernel, make_schedule(kernel, target), target, given)


def alternatives(schedule):
    """Other tiles; most do not fit."""
    for heights, vectors, block in itertools.product(
        [(1,), (3, 2), (7,), (8, 7)], (1, 2, 5), (1, 7, 13, 100)
    ):
        for unroll, apart, chunk, by_pixels in (
            (1, 0, 0, True),
            (2, 1, 0, False),
            (4, 2, 8, True),
            (3, 2, 3, False),
        ):
            tile = replace(
                schedule.register_tiles,
                heights=heights,
                vectors=vectors,
                block=block,
                unroll=unroll,
                apart=apart,
                chunk=chunk,
                by_pixels=by_pixels,
            )
            yield replace(schedule, register_tiles=tile, block=vectors * schedule.lanes)


def test_any_schedule_that_is_accepted_gives_the_same():
    kernel = CASES["stride"].kernel()
    for target in targets():
        first, fitting = make_schedule(kernel, target), []
        for schedule in alternatives(first) if first.register_tiles is not None else ():
            try:
                fitting.append(verify_schedule(kernel, schedule, target))
            except InvalidSchedule:
                continue
        chosen = np.random.default_rng(1).permutation(len(fitting))[:6]
        assert len(chosen) == 6 or first.register_tiles is None
        for schedule in (fitting[n] for n in chosen):
            assert parse_schedule(print_schedule(schedule)) == schedule
            check_schedule(kernel, schedule, target, integers(kernel))


def test_tiles_of_channels_that_leave_something_out_are_refused():
    kernel = CASES["depthwise_stride"].kernel()
    schedule = make_schedule(kernel, AVX512)
    assert parse_schedule(print_schedule(schedule)) == schedule
    for heights in ((), (3, 4), (0,), (4,), (700,)):
        tile = replace(schedule.register_tiles, heights=heights)
        with pytest.raises((InvalidSchedule, ValueError, IndexError)):
            verify_schedule(kernel, replace(schedule, register_tiles=tile), AVX512)
    with pytest.raises(InvalidSchedule):
        verify_schedule(kernel, replace(schedule, block=16), AVX512)


def test_large_taps_of_channels_are_walked_in_loops():
    """Written out, 49 taps of eight pixels take LLVM long."""
    walked = {name: CASES[name].tile().walked for name in CASES if "depthwise" in name}
    assert {name for name, axes in walked.items() if axes} == {
        "depthwise_large",
        "depthwise_large_dilated",
    }
    kernel = CASES["depthwise"].kernel()
    schedule = make_schedule(kernel, AVX512)
    for walked, fits in ((0, True), (1, True), (2, False), (-1, False)):
        tile = replace(schedule.register_tiles, walked=walked)
        given = replace(schedule, register_tiles=tile)
        if fits:
            assert parse_schedule(print_schedule(given)) == given
            for target in targets() & {AVX512}:  # none where its code cannot run
                check_schedule(kernel, given, target, integers(kernel))
        else:
            with pytest.raises(InvalidSchedule):
                verify_schedule(kernel, given, AVX512)


def test_schedules_that_leave_something_out_are_refused():
    kernel = CASES["long"].kernel()
    schedule = make_schedule(kernel, AVX512)
    for change in (
        {"heights": ()},
        {"block": 0},
        {"apart": 3},
        {"apart": 0, "chunk": 64},
        {"chunk": 6, "unroll": 4},
        {"pixels": schedule.register_tiles.pixels[1:]},
    ):
        tile = replace(schedule.register_tiles, **change)
        with pytest.raises((InvalidSchedule, ValueError)):
            verify_schedule(kernel, replace(schedule, register_tiles=tile), AVX512)
