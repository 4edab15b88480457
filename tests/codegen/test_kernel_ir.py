"""Kernel IR: text both ways, the verifier, and the interpreter as oracle for generated code."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.errors import UnsupportedGraph
from dovetail.ir.affine import Affine, NotAffine, divide, mul
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_text import parse_kernel, print_kernel
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.size import Size
from dovetail.schedule.limits import Limits
from dovetail.schedule.split import split
from dovetail.testing.kernel_reference import run_kernel
from tests.codegen.kernels import PROGRAMS, kernels_of, plan_of

GOLDEN = Path(__file__).parent / "golden"


def row_sum(op="sum", dtype="float32"):
    """out[i] = fold of x[i, :]."""
    n, m = Size.symbol("n"), Size.symbol("m")
    body = (
        Load("a", "float32", "x", Index(0, (("i", m), ("j", 1)))),
        Reduce("r", dtype, op, ("a",)),
    )
    store = Loop((), (Store("out", Index(0, (("i", 1),)), "r"),))
    buffers = (KernelBuffer("x", "float32"), KernelBuffer("out", dtype, "out"))
    loop = Loop((Axis("j", m),), body)
    return Kernel("row_sum", buffers, (Axis("i", n),), (loop, store))


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_both_ways(name):
    fn, args = PROGRAMS[name]
    for kernel in kernels_of(fn, *args):
        verify_kernel(kernel)
        text = print_kernel(kernel)
        assert parse_kernel(text) == kernel
        assert print_kernel(parse_kernel(text)) == text


def test_symbolic_sizes_in_text():
    kernel = row_sum()
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert kernel.symbols() == {"n", "m"}


GOLDEN_PROGRAMS = ["gelu", "softmax", "layer_norm", "cat", "rotary", "pad", "cross_entropy"]


@pytest.mark.parametrize("name", [*GOLDEN_PROGRAMS, "cumsum", "suffix_sums"])
def test_golden(name):
    """A change of lowering or fusion shows here; rewrite the file when it is meant."""
    fn, args = PROGRAMS[name]
    text = "\n".join(map(print_kernel, kernels_of(fn, *args)))
    path = GOLDEN / f"{name}.kernel"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    "text", ["", "kernel", "kernel k() over [] {", "kernel k() over [] {\n  nonsense\n}"]
)
def test_what_is_no_kernel(text):
    with pytest.raises(UnsupportedGraph):
        parse_kernel(text)


def broken(change):
    kernel = row_sum()
    return dataclasses.replace(kernel, **change(kernel))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: {"loops": k.loops[1:]}, "before it is defined"),
        (lambda k: {"buffers": k.buffers[:1]}, "unknown buffer"),
        (lambda k: {"axes": ()}, "unknown axis"),
        (lambda k: {"axes": (*k.axes, *k.loops[0].axes)}, "one of the kernel's"),
        (lambda k: {"buffers": (k.buffers[0], KernelBuffer("out", "float32", "in"))}, "out is in"),
        (lambda k: {"buffers": (k.buffers[0], *k.buffers)}, "two buffers"),
        (
            lambda k: {"loops": (Loop((), k.loops[0].body[:1] + k.loops[0].body[1:]),)},
            "unknown axis|without axes",
        ),
        (
            lambda k: {
                "loops": (
                    Loop(
                        k.loops[0].axes,
                        (k.loops[0].body[0], Apply("b", "float32", "add", ("a",))),
                    ),
                )
            },
            "add of float32 as float32",
        ),
    ],
)
def test_verifier_refuses(change, message):
    with pytest.raises(InvalidKernel, match=message):
        verify_kernel(broken(change))


def row_scan(op, dtype="float32", axes=1):
    """out[i, j] = fold of x[i, : j + 1]."""
    n, m = Size.symbol("n"), Size.symbol("m")
    place = Index(0, (("i", m), ("j", 1)))
    args = ("a", "p") if op.startswith("arg") else ("a",)
    body = (
        Load("a", dtype, "x", place),
        Position("p", Index(0, (("j", 1),))),
        Scan("r", dtype, op, args),
        Store("out", place, "r"),
    )
    own = (Axis("k", 2), Axis("j", m))[2 - axes :]
    kept = (Axis("i", n), *((Axis("j", m),) if axes == 0 else ()))
    buffers = (KernelBuffer("x", dtype), KernelBuffer("out", dtype, "out"))
    return Kernel("row_scan", buffers, kept, (Loop(own, body),))


def test_scans_in_text():
    kernel = row_scan("sum")
    assert "r: float32 = scan sum(a)" in print_kernel(kernel)
    assert parse_kernel(print_kernel(verify_kernel(kernel))) == kernel


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (row_scan("sum", axes=0), "other than one axis"),
        (row_scan("sum", axes=2), "other than one axis"),
        (row_scan("argmax"), "a scan argmax of 2"),
        (row_scan("median"), "a reduction median of float32"),
    ],
)
def test_verifier_refuses_scans(kernel, message):
    with pytest.raises(InvalidKernel, match=message):
        verify_kernel(kernel)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_interpreter_of_scans(op):
    x = np.arange(12, dtype="float32") - 5
    out = np.zeros(12, dtype="float32")
    run_kernel(row_scan(op), {"x": x, "out": out}, {"n": 3, "m": 4})
    fold = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    np.testing.assert_array_equal(out.reshape(3, 4), fold.accumulate(x.reshape(3, 4), axis=1))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_interpreter(op):
    x = np.arange(12, dtype="float32") - 5
    out = np.zeros(3, dtype="float32")
    run_kernel(row_sum(op), {"x": x, "out": out}, {"n": 3, "m": 4})
    fold = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[op]
    np.testing.assert_array_equal(out, fold(x.reshape(3, 4), axis=1))


@pytest.mark.parametrize("name", PROGRAMS)
def test_interpreter_agrees_with_eager(name):
    """The kernels of a program, run by the interpreter alone, give eager's result."""
    fn, args = PROGRAMS[name]
    plan = plan_of(fn, *args)
    memory = {}
    by_shape = {tuple(value.shape): value for value in args}  # tracing may reorder inputs
    for given in plan.segment.inputs:
        value = by_shape[given.desc.shape]
        memory[plan.values[given.name, ()]] = value.contiguous().numpy().reshape(-1).copy()
    for step in plan.steps:
        for value in step.buffers.values():
            if value not in memory:
                size = int(np.prod(value.shape, dtype="int64"))
                memory[value] = np.zeros(size, dtype=value.dtype)
        run_kernel(step.kernel, {n: memory[v] for n, v in step.buffers.items()})
    out = plan.values[plan.segment.outputs[0].name, plan.segment.outputs[0].path]
    expected = fn(*args)
    actual = torch.from_numpy(memory[out].copy()).as_strided(expected.shape, expected.stride())
    torch.testing.assert_close(actual, expected)


def joined(extent, border):
    """out[i, j] = x[i, j] before a border, else -y[i, j]."""
    place = Index(0, (("i", extent), ("j", 1)))
    body = (
        Position("p", Index(0, (("j", 1),))),
        Const("border", "int64", border),
        Apply("late", "bool", "ge", ("p", "border")),
        Apply("early", "bool", "lt", ("p", "border")),
        Load("a", "float32", "x", place, "early"),
        Load("b", "float32", "y", place, "late"),
        Apply("c", "float32", "neg", ("b",)),
        Apply("d", "float32", "where", ("early", "a", "c")),
        Store("out", place, "d"),
    )
    buffers = (
        KernelBuffer("x", "float32"),
        KernelBuffer("y", "float32"),
        KernelBuffer("out", "float32", "out"),
    )
    return Kernel("joined", buffers, (Axis("i", 32), Axis("j", extent)), (Loop((), body),))


@pytest.mark.parametrize("border", [1, 64, 99])
def test_loops_are_cut_at_borders(border):
    whole = joined(100, border)
    cut = split(whole, Limits())
    verify_kernel(cut)
    assert [loop.axes[0].extent for loop in cut.loops] == [border, 100 - border]
    assert not any(isinstance(i, Load) and i.mask for i in cut.instructions())
    assert not any(isinstance(i, Apply) and i.op == "where" for i in cut.instructions())
    x, y = np.random.default_rng(0).normal(size=(2, 3200)).astype("float32")
    results = [np.zeros(3200, dtype="float32") for _ in range(2)]
    for kernel, out in zip((whole, cut), results, strict=True):
        run_kernel(kernel, {"x": x, "y": y, "out": out})
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("extent", "border"), [(40, 20), (100, 0), (100, 100)])
def test_loops_left_whole(extent, border):
    kernel = joined(extent, border)
    assert split(kernel, Limits()) == kernel


# ---- affine expressions ------------------------------------------------------------------------


def test_affine_division():
    i, j = Affine.axis("i"), Affine.axis("j")
    position = i.scale(6) + j
    high, low = position.divmod(6, {"i": 4, "j": 6})
    assert (high, low) == (i, j)
    with pytest.raises(NotAffine):
        position.divmod(4, {"i": 4, "j": 6})
    with pytest.raises(NotAffine):
        (j + Affine(3)).divmod(6, {"j": 6})


def test_sizes_fold():
    s = Size.symbol("s")
    assert mul(1, s) == s
    assert mul(0, s) == 0
    assert mul(s, 4) == mul(4, s)
    assert divide(mul(s, 4), s) == 4
    assert divide(6, 4) is None
