"""Constant matrices packed for products: the same results by other calls."""

import pytest
import torch
from torch import nn

import dovetail
from dovetail.cli.inspect import describe
from dovetail.file.processors import target_here
from dovetail.ir import Input, Segment
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.kernel_product import kernel_product
from dovetail.ir.segment_verify import verify_segment
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import TensorDesc
from dovetail.report.stages import cpu_segments
from dovetail.runtime.interpreter import Interpreter
from dovetail.schedule.build import Built
from dovetail.schedule.cpu.packing import pack_products, panel_width
from dovetail.schedule.plan import make_plan
from tests.differential import needs_code

AVX512 = TARGETS["x86-64-v4"]


def desc(*shape, strides=None, dtype="float32"):
    return TensorDesc(dtype, shape, strides or contiguous_strides(shape))


def product(x, w, bias=None, kwargs=None):
    """A segment of one product, and a rectifier behind it."""
    out = desc(x.shape[0], w.shape[1], dtype=x.dtype)
    given = {"b": bias, "x": x, "w": w} if bias is not None else {"x": x, "w": w}
    inputs = tuple(Input(n, d, "tensor" if n == "x" else "constant") for n, d in given.items())
    refs = tuple(Ref(n, d) for n, d in given.items())
    op = "aten.mm.default" if bias is None else "aten.addmm.default"
    calls = (
        OpCall("y", op, refs, kwargs or {}, out),
        OpCall("z", "aten.relu.default", (Ref("y", out),), {}, out),
    )
    return Segment("s", inputs, calls, (Ref("z", out),))


def run(segment):
    """Its result on small integers, whose sums are exact."""
    g = torch.Generator().manual_seed(0)
    given = []
    for i in segment.inputs:
        size = sum((n - 1) * s for n, s in zip(i.desc.shape, i.desc.strides, strict=True)) + 1
        flat = torch.randint(-4, 5, (size,), generator=g).float()
        given.append(flat.as_strided(i.desc.shape, i.desc.strides))
    (result,) = Interpreter(segment)(given)
    return result


@pytest.mark.parametrize("bias", [None, desc(96), desc(5, 96)])
@pytest.mark.parametrize("strides", [(96, 1), (1, 40)])
def test_the_same_results(bias, strides):
    segment = product(desc(5, 40), desc(40, 96, strides=strides), bias)
    packed = pack_products(segment, AVX512, frozenset("wb"))
    verify_segment(packed)
    assert "aten.bmm.default" in {call.op for call in packed.calls}
    assert torch.equal(run(segment), run(packed))


@pytest.mark.parametrize("bias", [None, desc(48)])
def test_one_panel_is_a_matrix_by_rows(bias):
    segment = product(desc(5, 40), desc(40, 48, strides=(1, 40)), bias)
    packed = pack_products(segment, AVX512, frozenset("wb"))
    verify_segment(packed)
    assert packed.calls[0].op == "aten.clone.default"
    assert packed.calls[1].op == segment.calls[0].op
    assert torch.equal(run(segment), run(packed))


def test_packing_and_the_product_are_a_kernel_each():
    segment = product(desc(5, 40), desc(40, 96, strides=(1, 40)), desc(96))
    steps = make_plan(pack_products(segment, AVX512, frozenset("wb")), AVX512).steps
    assert all(isinstance(step, Built) for step in steps)
    copy, tiles = (step.kernel for step in steps)
    assert kernel_product(copy) is None
    found = kernel_product(tiles)
    assert found.right.index.stride(found.columns.name) == 1
    assert found.right.index.stride(found.sum.name) == found.columns.extent == 48


LEFT_ALONE = {
    "no constant": (product(desc(5, 40), desc(40, 96)), ""),
    "one row": (product(desc(1, 40), desc(40, 96)), "w"),
    "one panel by rows": (product(desc(5, 40), desc(40, 48)), "w"),
    "no panels": (product(desc(5, 40), desc(40, 97)), "w"),
    "scaled": (product(desc(5, 40), desc(40, 96), desc(96), {"beta": 2}), "wb"),
    "bfloat16": (
        product(desc(5, 40, dtype="bfloat16"), desc(40, 96, dtype="bfloat16")),
        "w",
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name):
    segment, once = LEFT_ALONE[name]
    assert pack_products(segment, AVX512, frozenset(once)) is segment


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        ("float16", "x86-64-v4"),
        ("float16", "x86-64-v3"),
        ("bfloat16", "x86-64-v3"),
        ("bfloat16", "x86-64-v4-bf16"),
    ],
)
def test_half_precision_is_packed_where_no_library_is_fast(dtype, target):
    segment = product(desc(5, 40, dtype=dtype), desc(40, 96, dtype=dtype))
    packed = pack_products(segment, TARGETS[target], frozenset("w"))
    assert packed is not segment
    steps = make_plan(packed, TARGETS[target]).steps
    assert all(isinstance(step, Built) for step in steps)


@pytest.mark.parametrize(
    ("rows", "steps", "is_packed"), [(32, 40, False), (40, 40, True), (40, 768, False)]
)
def test_pairs_of_bfloat16_of_few_rows_are_read_where_they_lie(rows, steps, is_packed):
    lies = desc(steps, 96, strides=(1, steps), dtype="bfloat16")
    segment = product(desc(rows, steps, dtype="bfloat16"), lies)
    packed = pack_products(segment, TARGETS["x86-64-v4-bf16"], frozenset("w"))
    assert (packed is not segment) == is_packed


def test_a_matrix_is_packed_once():
    one = product(desc(5, 96), desc(96, 96))
    x, w = Ref("z", desc(5, 96)), Ref("w", desc(96, 96))
    more = OpCall("again", "aten.mm.default", (x, w), {}, desc(5, 96))
    sum_of = OpCall("sum", "aten.add.Tensor", (x, Ref("again", desc(5, 96))), {}, desc(5, 96))
    two = Segment("s", one.inputs, (*one.calls, more, sum_of), (Ref("sum", desc(5, 96)),))
    packed = pack_products(two, AVX512, frozenset("w"))
    assert [call.op for call in packed.calls].count("aten.bmm.default") == 2
    assert [c.op for c in packed.calls if c.name.startswith("w_")].count("aten.clone.default") == 1
    assert torch.equal(run(two), run(packed))


def test_widths_divide_columns():
    sizes = (768, 1024, 300, 80, 257, 16)
    assert [panel_width(n, AVX512) for n in sizes] == [48, 64, 0, 80, 0, 16]
    assert [panel_width(n, TARGETS["x86-64-v3"]) for n in sizes] == [16, 16, 0, 16, 0, 16]


@needs_code
def test_an_exported_model_holds_packed_matrices(tmp_path):
    model = nn.Sequential(nn.Linear(40, 96), nn.GELU(), nn.Linear(96, 16)).eval()
    x = torch.randn(2, 5, 40)
    path = tmp_path / "model.dvt"
    dovetail.export(model, (x,), backend="cpu").save(path)
    found = describe(str(path))
    assert len(found["kernels"]) == 2
    assert not found["host_ops"]
    width = panel_width(96, target_here())
    assert f"[40, 96] as [d1 / {width}: {96 // width}, d0: 40, d1: {width}]\n" in found["program"]
    torch.testing.assert_close(dovetail.load(path)(x), model(x))


@needs_code
@pytest.mark.parametrize(("name", "width"), [("x86-64-v4", 48), ("x86-64-v3", 16)])
def test_stages_show_what_is_packed_for_the_target_asked_for(name, width):
    segments = cpu_segments(nn.Linear(40, 96), (torch.randn(5, 40),), TARGETS[name])
    assert any(f"[{96 // width}, 40, {width}]" in str(segment) for segment in segments)


@needs_code
def test_a_frozen_parameter_is_packed_again_when_it_is_written_to():
    model = nn.Linear(40, 96).eval()
    x = torch.randn(5, 40)
    compiled = torch.compile(model, backend="cpu", options={"freeze": True, "cache": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.mul_(-2)
        torch.testing.assert_close(compiled(x), model(x))
