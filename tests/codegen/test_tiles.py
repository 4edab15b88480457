"""Loads that lie across the vectors, and interleaved ones, on every machine code is made for."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.interleave import deinterleave, interleave
from dovetail.codegen.llvm.transpose import columns_of
from dovetail.ir.kernel import Store
from dovetail.ir.target import TARGETS
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.testing.kernel_reference import run_kernel
from tests.codegen.kernels import kernels_of
from tests.codegen.test_random_kernels import run_code, targets
from tests.differential import assert_same

LAST = torch.channels_last
PROGRAMS = {
    "transposed": (lambda x: x.t().contiguous(), (150, 70)),
    "one_tile": (lambda x: (x.t() * 2).contiguous(), (64, 64)),
    "short_axes": (lambda x: x.t().contiguous(), (9, 8)),
    "few_at_the_end": (lambda x: x.t().contiguous(), (70, 33)),
    "less_than_a_vector": (lambda x: x.t().contiguous(), (8, 200)),
    "batch": (lambda x: (x.transpose(1, 2) + 2).contiguous(), (3, 65, 31)),
    "reversed": (lambda x: x.permute(2, 1, 0).contiguous(), (17, 3, 67)),
    "twice": (lambda x: (x[1:].t() + x[:-1].t()).contiguous(), (66, 33)),
    "both_ways": (lambda x: x.t() - x.reshape(70, 40) * 2, (40, 70)),
    "with_a_row": (lambda x: (x.t() * x[:, 0] + x[0][:, None]).contiguous(), (70, 40)),
    "channels_last": (lambda x: x.to(memory_format=LAST), (2, 19, 9, 13)),
    "channels_first": (lambda x: x.permute(0, 3, 1, 2).contiguous(), (2, 9, 13, 19)),
}
INTERLEAVED = {
    "colours": (lambda x: x.to(memory_format=LAST), (2, 3, 9, 13)),
    "colours_apart": (lambda x: x.permute(0, 3, 1, 2).contiguous() + 1, (2, 9, 13, 3)),
    "pairs": (lambda x: torch.stack([x, x * 2], -1), (7, 33)),
    "pairs_rotated": (
        lambda x: torch.stack([x[:, ::2] * 2 - x[:, 1::2], x[:, 1::2] + x[:, ::2]], -1).flatten(-2),
        (5, 70),
    ),
    "four": (lambda x: x.transpose(0, 1).contiguous(), (4, 100)),
    "four_apart": (lambda x: (x.view(-1, 4).t() * 3).contiguous(), (37, 4)),
    "pixels": (lambda x: torch.pixel_shuffle(x, 2), (2, 8, 9, 11)),
    "some_of_them": (lambda x: x[:, ::3] + x[:, 1::3], (5, 60)),
    "folded": (lambda x: (x.view(9, 40, 2).sum(1), x.view(-1, 2)[:, 0].sum()), (9, 80)),
    "in_place": (lambda x: x.view(-1, 3)[:, 1:].mul_(2).sum(1), (4, 33)),
}
DTYPES = ("float32", "float64", "bfloat16", "int64", "int16", "uint8", "bool")


def data(shape, dtype):
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 2 if dtype == "bool" else 9, shape, generator=g).to(
        getattr(torch, dtype)
    )


def transposed_loads(kernel):
    tile = make_schedule(kernel, TARGETS["x86-64-v3"]).tile
    return () if tile is None else tile.transposed


def shuffled(shuffle, dtype, count, lanes):
    """Where the lanes of a shuffle's results come from, as (vector, lane)."""
    c = Code(16)
    content = {f"%row{n}": [(n, lane) for lane in range(lanes)] for n in range(count)}
    rows = shuffle(c, [Val(name, dtype, lanes) for name in content])
    for line in c.lines:
        name, left, right = re.findall(r"%\w+", line)
        picks = re.findall(r"i32 (\d+|poison)", line)
        both = [*content[left], *content[right]]
        content[name] = [None if p == "poison" else both[int(p)] for p in picks]
    return [content[row.text] for row in rows]


def test_rows_become_columns():
    for count, piece in ((16, 4), (16, 8), (16, 16), (8, 2), (8, 4), (4, 4), (2, 2)):
        found = shuffled(columns_of, "int8", count, piece)
        assert found == [[(n, lane) for n in range(count)] for lane in range(piece)]


def test_vectors_are_interleaved_and_taken_apart():
    for count, lanes in itertools.product((2, 3, 4), (2, 4, 16)):
        found = shuffled(interleave, "float32", count, lanes)
        assert [*itertools.chain(*found)] == [
            (n, lane) for lane in range(lanes) for n in range(count)
        ]
        found = shuffled(deinterleave, "float32", count, lanes)
        places = [(n, lane) for n in range(count) for lane in range(lanes)]
        assert found == [places[n::count] for n in range(count)]


def on_every_target(kernel, shape):
    """A kernel's results are the oracle's; its inputs have the shape's number of elements."""
    arrays = {}
    for b in kernel.buffers:
        stores = sum(isinstance(i, Store) for i in kernel.instructions())
        points = stores * math.prod(axis.extent for axis in kernel.axes)
        size = math.prod(shape) if b.role == "in" else points
        arrays[b.name] = np.arange(size).astype(b.dtype) * (b.role == "in")
    found = [run_code(kernel, arrays, {}, target) for target in targets()]
    run_kernel(kernel, arrays, {})
    for results in found:
        for out, result in results.items():
            np.testing.assert_array_equal(result, arrays[out])


@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_on_every_target(name):
    fn, shape = PROGRAMS[name]
    for kernel in kernels_of(fn, data(shape, "float32")):
        assert transposed_loads(kernel)
        on_every_target(kernel, shape)


@pytest.mark.parametrize(
    "name", ["colours", "colours_apart", "pairs", "four", "four_apart", "pixels"]
)
def test_interleaved_on_every_target(name):
    fn, shape = INTERLEAVED[name]
    for kernel in kernels_of(fn, data(shape, "float32")):
        schedule = make_schedule(kernel, TARGETS["x86-64-v3"])
        assert any(loop.interleaved for loop in schedule.loops)
        on_every_target(kernel, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(dtype):
    both = PROGRAMS | INTERLEAVED

    def fn(*given):
        if dtype == "bool":
            return [~x.transpose(0, 1).contiguous() for x in given]
        return [program(x) for (program, _), x in zip(both.values(), given, strict=True)]

    assert_same(
        fn, *(data(shape, dtype) for _, shape in both.values()), backend="cpu", dynamic=False
    )


def test_sizes_that_vary():
    fn = torch.compile(
        lambda x: (x.transpose(-1, -2) * 3).contiguous(), backend="cpu", dynamic=True
    )
    torch._dynamo.reset()
    for shape in ((2, 100, 65), (3, 7, 130), (4, 300, 5), (2, 2, 2)):
        x = data(shape, "float32")
        assert torch.equal(fn(x), x.transpose(-1, -2) * 3)


def test_a_matrix_that_lies_otherwise_stays_whole():
    """No tiles where a load has no dense axis at all, or is dense where the vectors are."""
    for fn, shape in ((lambda x: x[:, ::2] * 1, (40, 80)), (lambda x: x * x[0], (40, 80))):
        for kernel in kernels_of(fn, data(shape, "float32")):
            assert not transposed_loads(kernel)
