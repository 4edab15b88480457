"""The C interpreter of kernel IR against the oracle: operations, types, folds, whole programs."""

import dataclasses
import itertools
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from dovetail import _native
from dovetail.errors import (
    DividedByZero,
    FallbackWarning,
    IndexOutOfBounds,
    IndexOutOfRange,
    SizeError,
)
from dovetail.file import kernel_codes as codes
from dovetail.file.kernel_decode import decode_kernels
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.dtypes import ANY, COMPUTE
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
from dovetail.ir.ops import (
    CHECKS,
    OPERATIONS,
    REDUCTIONS,
)
from dovetail.ir.size import Size
from dovetail.testing.kernel_reference import run_kernel
from tests.artifact.files import ROOT
from tests.native.interpret import interpret

pytestmark = pytest.mark.filterwarnings("ignore::dovetail.errors.FallbackWarning")

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 1.5, 2.5, -0.3, 1e-30, 40.0]
LENGTHS = [1, 17, 600]  # one element, less than a vector, more than a strip


def at(*strides, offset=0):
    """An index along i (and j)."""
    return Index(offset, tuple(zip("ij", strides, strict=False)))


def pointwise(op, given, result):
    """out[i] = op(a[i], b[i], …)."""
    names = "abc"[: len(given)]
    loads = [Load(f"v{n}", t, n, at(1)) for n, t in zip(names, given, strict=True)]
    body = (*loads, Apply("r", result, op, tuple(f"v{n}" for n in names)), Store("out", at(1), "r"))
    buffers = [KernelBuffer(n, t) for n, t in zip(names, given, strict=True)]
    buffers.append(KernelBuffer("out", result, "out"))
    return Kernel("k", tuple(buffers), (Axis("i", Size.symbol("n")),), (Loop((), body),))


def values(dtype, count, seed=0, *, plain=False):
    """Numbers of a type, the odd ones first unless ``plain``."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.random(count) < 0.5
    if dtype.startswith("float"):
        found = random.standard_normal(count) * 3
        if not plain:
            odd = np.array(SPECIAL)[random.permutation(len(SPECIAL))]
            found[: len(odd)] = odd[:count]
        return found.astype(dtype)
    info = np.iinfo(dtype)
    found = random.integers(max(info.min, -50), 50, count)
    if not plain:
        odd = random.permutation([info.min, info.max, 0, 1, info.max // 3])
        found[: len(odd)] = odd[:count]
    return found.astype(dtype)


def run_both(kernel, buffers, sizes=None):
    """The results of the C interpreter and of the oracle, for the buffers it writes."""
    got = interpret(kernel, {n: v.copy() for n, v in buffers.items()}, sizes)
    run_kernel(kernel, buffers, sizes)
    return {n: (r.numpy(), buffers[n]) for n, r in got.items()}


def assert_same(kernel, buffers, sizes=None, *, exact=True):
    for name, (got, expected) in run_both(kernel, buffers, sizes).items():
        assert got.dtype == expected.dtype
        if exact or got.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
        else:
            few = 4 * np.finfo(got.dtype).eps
            np.testing.assert_allclose(got, expected, rtol=few, atol=few / 8, err_msg=name)


# ---- the tables --------------------------------------------------------------------------------


def test_the_headers_of_c_are_what_the_tables_say():
    command = [sys.executable, str(ROOT / "tools/generate_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_caps_of_python_and_c_are_one():
    text = (ROOT / "native/src/kernel_ir.h").read_text()
    for name, value in re.findall(r"#define (MAX_\w+) +\(?([\du <]+)\)?", text):
        one, _, shift = value.replace("u", "").partition("<<")
        assert getattr(codes, name) == int(one) << int(shift or 0), name


# ---- operations --------------------------------------------------------------------------------


def admitted(operation):
    """Every choice of types that an operation takes."""
    for given in itertools.product(sorted(ANY), repeat=operation.arity):
        for result in sorted(ANY):
            if operation.admits(given, result):
                yield given, result


EXACT = {"neg", "abs", "not", "isnan", "floor", "ceil", "trunc", "round", "sqrt", "sign", "sgn"}
EXACT |= {"add", "sub", "mul", "div", "min", "max", "copysign", "where", "round_half"}
EXACT |= {
    "round_bfloat16",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
    "fmod",
}


def operands(operation, given, result, count):
    """Values that the operation, and the oracle's way of doing it, are defined for."""
    name = operation.name
    if name in ("div_int", "floordiv", "floormod"):
        left, right = (values(t, count, n, plain=True) for n, t in enumerate(given))
        return [left, np.where(right == 0, 3, right).astype(given[1])]
    if name == "cast" and given[0].startswith("float") and "int" in result:
        found = values(given[0], count, plain=True)  # what does not fit is no affair of NumPy's
        return [np.abs(found) if result == "uint8" else found]
    if name in ("sign", "sgn") and given[0].startswith("float"):
        return [np.nan_to_num(values(given[0], count))]  # ATen's sign of NaN is 0, NumPy's NaN
    if name in ("sin", "cos", "tan"):
        return [np.nan_to_num(values(given[0], count), posinf=9, neginf=-9)]
    if name == "pow" and "int" in result:
        return [values(t, count, n, plain=True) for n, t in enumerate(given)]
    if name == "pow":
        return [np.abs(values(given[0], count)), values(given[1], count, 1, plain=True)]
    if name == "fma":  # of one sign, so that what is rounded once or twice differs little
        return [np.abs(values(t, count, n)) for n, t in enumerate(given)]
    if name == "check_divisor":
        index = values("int64", count, 0, plain=True)
        return [np.where(index == 0, 5, index), np.ones(count, "int64"), np.ones(count, dtype=bool)]
    if name in CHECKS:
        index = values("int64", count, 0, plain=True) % 7
        return [index, np.full(count, 7), np.ones(count, dtype=bool)]
    return [values(t, count, n) for n, t in enumerate(given)]


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_operation(name):
    operation = OPERATIONS[name]
    checked = 0
    for given, result in admitted(operation):
        kernel = pointwise(name, given, result)
        for count in LENGTHS:
            args = operands(operation, given, result, count)
            buffers = dict(zip("abc", args, strict=False)) | {"out": np.zeros(count, dtype=result)}
            exact = name in EXACT or name == "cast" or not result.startswith("float")
            assert_judged(kernel, buffers, {"n": count}, exact=exact)
            checked += 1
    assert checked


def assert_judged(kernel, buffers, sizes, *, exact):
    """As ``assert_same``; float32 functions are judged by the oracle in float64."""
    if exact or buffers["out"].dtype != np.float32:
        assert_same(kernel, buffers, sizes, exact=exact)
        return
    got = interpret(kernel, buffers, sizes)["out"].numpy()
    wide = {n: v.astype("float64") if v.dtype == np.float32 else v for n, v in buffers.items()}
    name = kernel.loops[0].body[-2].op
    run_kernel(pointwise(name, ("float64",) * OPERATIONS[name].arity, "float64"), wide, sizes)
    eps = np.finfo("float32").eps
    with np.errstate(over="ignore"):
        expected = wide["out"].astype("float32")
    np.testing.assert_allclose(got, expected, rtol=3 * eps, atol=1e-38)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("result", ["int64", "int32", "int16", "int8", "uint8"])
def test_what_does_not_fit_an_integer_is_as_in_eager(dtype, result):
    x = np.array([math.nan, math.inf, -math.inf, 1e30, -1e30, 3.7, -3.7, 255.0, -1.0], dtype=dtype)
    got = interpret(pointwise("cast", (dtype,), result), {"a": x, "out": x}, {"n": len(x)})
    assert torch.equal(got["out"][5:], torch.from_numpy(x[5:]).to(getattr(torch, result)))
    wide = {"int64": -(2**63), "int32": -(2**31)}.get(result, 0)
    assert got["out"][:5].tolist() == [wide] * 5


def test_integers_wrap_and_shift_as_aten():
    ends = np.array([2**63 - 1, -(2**63), -1, 5], dtype="int64")
    one = np.array([1, -1, 64, -3], dtype="int64")
    for op in ("add", "sub", "mul", "shl", "shr"):
        kernel = pointwise(op, ("int64", "int64"), "int64")
        assert_same(kernel, {"a": ends, "b": one, "out": np.zeros(4, "int64")}, {"n": 4})
    least = {"a": ends[1:2], "b": one[1:2], "out": np.zeros(1, "int64")}
    for op, expected in (("div_int", -(2**63)), ("floordiv", -(2**63)), ("floormod", 0)):
        got = interpret(pointwise(op, ("int64", "int64"), "int64"), least, {"n": 1})
        assert got["out"].tolist() == [expected]


def test_powers_of_any_exponent():
    bases = np.repeat(np.array([0, 1, -1, 2, -3], dtype="int64"), 5)
    exponents = np.tile(np.array([-(2**63), 1 - 2**63, -1, 3, 2**63 - 1], dtype="int64"), 5)
    buffers = {"a": bases, "b": exponents, "out": np.zeros(25, "int64")}
    assert_same(pointwise("pow", ("int64", "int64"), "int64"), buffers, {"n": 25})
    eager = torch.pow(torch.from_numpy(bases), torch.from_numpy(exponents))
    np.testing.assert_array_equal(buffers["out"], eager.numpy())


def test_tanh_is_as_exact_as_in_generated_code():
    x = np.concatenate([np.linspace(0, 10, 200_001), np.linspace(0.4, 0.8, 200_001), [-0.0, -0.7]])
    x = x.astype("float32")
    kernel = pointwise("tanh", ("float32",), "float32")
    got = interpret(kernel, {"a": x, "out": x.copy()}, {"n": len(x)})["out"].numpy()
    exact = np.tanh(x.astype("float64"))
    error = np.abs(got - exact) / np.spacing(np.abs(exact).astype("float32"))
    assert error.max() < 0.9  # in units of the last place
    assert math.copysign(1, got[-2]) == -1


@pytest.mark.parametrize("op", ["div_int", "floordiv", "floormod"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_integer_division_by_zero_is_an_error(op, dtype):
    x = np.array([4, 5, 6], dtype=dtype)
    buffers = {"a": x, "b": np.array([2, 0, 1], dtype=dtype), "out": x}
    with pytest.raises(SizeError, match="divided by zero"):
        interpret(pointwise(op, (dtype, dtype), dtype), buffers, {"n": 3})


def test_a_divisor_of_zero_is_an_error():
    names = ("int64", "int64", "bool")
    x, one = np.array([4, 0, 6]), np.ones(3, "int64")
    kernel = pointwise("check_divisor", names, "int64")
    buffers = {"a": x, "b": one, "c": np.array([True, True, True]), "out": x}
    with pytest.raises(DividedByZero, match="ZeroDivisionError"):
        interpret(kernel, buffers, {"n": 3})
    unused = buffers | {"c": np.array([True, False, True])}
    assert interpret(kernel, unused, {"n": 3})["out"].tolist() == [4, 1, 6]


# ---- storage -----------------------------------------------------------------------------------


def copy_kernel(source, target):
    body = (Load("v", COMPUTE[source], "a", at(1)), Store("out", at(1), "v"))
    buffers = (KernelBuffer("a", source), KernelBuffer("out", target, "out"))
    return Kernel("k", buffers, (Axis("i", Size.symbol("n")),), (Loop((), body),))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_every_half_is_widened_and_rounded(half):
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    x = bits.view(getattr(torch, half))
    empty = torch.empty(65536)
    wide = interpret(copy_kernel(half, "float32"), {"a": x, "out": empty}, {"n": 65536})["out"]
    torch.testing.assert_close(wide, x.float(), rtol=0, atol=0, equal_nan=True)
    back = interpret(copy_kernel("float32", half), {"a": wide, "out": empty}, {"n": 65536})["out"]
    numbers = ~x.isnan()
    assert torch.equal(back.view(torch.int16)[numbers], bits[numbers])
    assert back[~numbers].isnan().all()


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_rounding_to_a_half_is_to_nearest_even(half):
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (50000,), generator=generator, dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    halves = torch.arange(2**15, dtype=torch.int16).view(getattr(torch, half)).float()
    between = (halves[:-1] + halves[1:]) / 2
    x = torch.cat([x, between, torch.tensor([65519.0, 65520.0, -65520.0, 2**-25, 3e-8])])
    x = x[~x.isnan()].contiguous()
    got = interpret(copy_kernel("float32", half), {"a": x, "out": x}, {"n": len(x)})["out"]
    assert torch.equal(got, x.to(getattr(torch, half)))


@pytest.mark.parametrize("source", list(COMPUTE))
@pytest.mark.parametrize("target", list(COMPUTE))
def test_a_store_converts(source, target):
    small = torch.arange(40) % 2 if "bool" in (source, target) else torch.arange(40)
    x = small.to(getattr(torch, source))
    got = interpret(copy_kernel(source, target), {"a": x, "out": x}, {"n": 40})["out"]
    assert torch.equal(got, x.to(getattr(torch, target)))


def test_a_bool_is_any_byte_that_is_not_zero():
    x = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    got = interpret(copy_kernel("bool", "int32"), {"a": x, "out": x}, {"n": 4})["out"]
    assert got.tolist() == [0, 1, 1, 1]


# ---- folds -------------------------------------------------------------------------------------

SHAPES = [(5, 3), (1, 1700), (700, 6), (3, 700), (40, 40), (2, 1)]


def fold_kernel(op, dtype, result, *, rows):
    """out[i] = fold of x[i, :], or down a column of x."""
    n, m = Size.symbol("n"), Size.symbol("m")
    place = at(m, 1) if rows else at(1, n)
    body = [Load("a", dtype, "x", place)]
    args = ("a",)
    if op.startswith("arg"):
        body.append(Position("p", Index(0, (("j", 1),))))
        args = ("a", "p")
    body.append(Reduce("r", result, op, args))
    buffers = (KernelBuffer("x", dtype), KernelBuffer("out", result, "out"))
    loops = (Loop((Axis("j", m),), tuple(body)), Loop((), (Store("out", at(1), "r"),)))
    return Kernel("k", buffers, (Axis("i", n),), loops)


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("op", list(REDUCTIONS))
def test_fold(op, rows):
    for dtype in sorted(ANY):
        result = "int64" if op.startswith("arg") else dtype
        if not REDUCTIONS[op].admits((dtype, "int64")[: REDUCTIONS[op].arity], result):
            continue
        kernel = fold_kernel(op, dtype, result, rows=rows)
        for n, m in SHAPES:
            x = values(dtype, n * m, n, plain=op in ("sum", "prod") and dtype.startswith("float"))
            if op == "prod" and dtype.startswith("float"):
                x = np.sign(x) * (1 + np.abs(x) / m).astype(dtype)
            buffers = {"x": x, "out": np.zeros(n, dtype=result)}
            if op in ("sum", "prod") and dtype.startswith("float"):
                assert_sum(kernel, buffers, {"n": n, "m": m}, x)
            else:
                assert_same(kernel, buffers, {"n": n, "m": m})


def assert_sum(kernel, buffers, sizes, x):
    """Against the oracle in float64, in units of what rounding may make of the terms."""
    wide = {name: value.astype("float64") for name, value in buffers.items()}
    run_kernel(kernel_in(kernel, "float64"), wide, sizes)
    got = interpret(kernel, buffers, sizes)["out"].numpy()
    # float32 is folded in float64; a fold in float64 rounds at every step, the oracle's too.
    steps = 4 if x.dtype == np.float32 else 2 * sizes["m"]
    largest = np.maximum(np.abs(x).sum() / len(got), np.abs(wide["out"]))
    assert np.all(np.abs(got - wide["out"]) <= steps * np.finfo(x.dtype).eps * largest)


def kernel_in(kernel, dtype):
    return parse_kernel(re.sub("float32|float64", dtype, print_kernel(kernel)))


def test_a_sum_may_be_of_another_type():
    kernel = fold_kernel("sum", "bool", "int64", rows=True)
    x = values("bool", 1200)
    got = interpret(kernel, {"x": x, "out": np.zeros(2, "int64")}, {"n": 2, "m": 600})["out"]
    assert got.tolist() == x.reshape(2, 600).sum(1).tolist()


NOTHING = [("any", "bool", False), ("all", "bool", True)]
for _dtype, _low, _high in (
    ("float32", -math.inf, math.inf),
    ("int64", -(2**63), 2**63 - 1),
    ("uint8", 0, 255),
):
    NOTHING += [("sum", _dtype, 0), ("prod", _dtype, 1), ("max", _dtype, _low)]
    NOTHING.append(("min", _dtype, _high))


@pytest.mark.parametrize(("op", "dtype", "start"), NOTHING)
def test_a_fold_of_nothing(op, dtype, start):
    kernel = fold_kernel(op, dtype, dtype, rows=True)
    buffers = {"x": np.zeros(0, dtype), "out": np.zeros(3, dtype)}
    assert interpret(kernel, buffers, {"n": 3, "m": 0})["out"].tolist() == [start] * 3


@pytest.mark.parametrize(("n", "m"), [(0, 3), (0, 0), (3, 0), (1, 1), (2000, 3), (3, 2000)])
def test_sizes_are_known_at_the_call_only(n, m):
    kernel = fold_kernel("max", "float32", "float32", rows=True)
    x, out = values("float32", n * m), np.zeros(n, "float32")
    assert_same(kernel, {"x": x, "out": out}, {"n": n, "m": m})


# ---- scans -------------------------------------------------------------------------------------


def scan_kernel(op, dtype, *, rows):
    """out[i, j] = fold of x[i, : j + 1], or the same down a column of x."""
    n, m = Size.symbol("n"), Size.symbol("m")
    place = at(m, 1) if rows else at(1, n)
    body = (Load("a", dtype, "x", place), Scan("r", dtype, op, ("a",)), Store("out", place, "r"))
    buffers = (KernelBuffer("x", dtype), KernelBuffer("out", dtype, "out"))
    return Kernel("k", buffers, (Axis("i", n),), (Loop((Axis("j", m),), body),))


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("op", [fold.name for fold in REDUCTIONS.values() if fold.arity == 1])
def test_scan(op, rows):
    for dtype in sorted(ANY):
        if not REDUCTIONS[op].admits((dtype,), dtype):
            continue
        kernel = scan_kernel(op, dtype, rows=rows)
        for n, m in (*SHAPES, (3, 0)):
            x = values(dtype, n * m, n, plain=op in ("sum", "prod") and dtype.startswith("float"))
            if op == "prod" and dtype.startswith("float"):
                x = np.sign(x) * (1 + np.abs(x) / (m + 1)).astype(dtype)
            buffers = {"x": x, "out": np.zeros(n * m, dtype)}
            if op in ("sum", "prod") and dtype == "float32":
                assert_scan(kernel, buffers, {"n": n, "m": m}, x)
            else:
                assert_same(kernel, buffers, {"n": n, "m": m})


def assert_scan(kernel, buffers, sizes, x):
    """Against the oracle in float64: float32 is scanned in float64 and rounded once."""
    wide = {name: value.astype("float64") for name, value in buffers.items()}
    run_kernel(kernel_in(kernel, "float64"), wide, sizes)
    got = interpret(kernel, buffers, sizes)["out"].numpy()
    np.testing.assert_allclose(got, wide["out"], rtol=np.finfo(x.dtype).eps, atol=1e-9)


def test_a_scan_may_be_of_another_type():
    kernel = scan_kernel("sum", "int64", rows=True)
    body = kernel.loops[0].body
    flags = dataclasses.replace(body[0], dtype="bool")
    kernel = dataclasses.replace(
        kernel,
        buffers=(KernelBuffer("x", "bool"), kernel.buffers[1]),
        loops=(Loop(kernel.loops[0].axes, (flags, *body[1:])),),
    )
    x = values("bool", 1200)
    got = interpret(kernel, {"x": x, "out": np.zeros(1200, "int64")}, {"n": 2, "m": 600})["out"]
    assert got.tolist() == x.reshape(2, 600).cumsum(1).ravel().tolist()


# ---- masks and gathers -------------------------------------------------------------------------


def padded():
    """out[i] = x[i - 2] where that exists, else 9; and the load is not made elsewhere."""
    body = (
        Position("p", Index(-2, (("i", 1),))),
        Const("zero", "int64", 0),
        Position("m", Index(Size.symbol("m"))),
        Apply("low", "bool", "ge", ("p", "zero")),
        Apply("high", "bool", "lt", ("p", "m")),
        Apply("mask", "bool", "and", ("low", "high")),
        Load("v", "float32", "x", at(1, offset=-2), "mask"),
        Const("fill", "float32", 9.0),
        Apply("r", "float32", "where", ("mask", "v", "fill")),
        Store("out", at(1), "r"),
    )
    buffers = (KernelBuffer("x", "float32"), KernelBuffer("out", "float32", "out"))
    return Kernel("k", buffers, (Axis("i", Size.symbol("n")),), (Loop((), body),))


@pytest.mark.parametrize(("n", "m"), [(8, 4), (1500, 1496), (1500, 3), (5, 0), (4, 900)])
def test_a_masked_load_stays_inside(n, m):
    x = values("float32", m)
    assert_same(padded(), {"x": x, "out": np.zeros(n, "float32")}, {"n": n, "m": m})


def gathered(check):
    """out[i, j] = x[index[i], j], the index checked."""
    body = (
        Load("k", "int64", "index", at(1)),
        Position("m", Index(Size.symbol("m"))),
        Const("yes", "bool", value=True),
        Apply("safe", "int64", check, ("k", "m", "yes")),
        Load("v", "float32", "x", Index(0, (("j", 1),), (("safe", Size.symbol("w")),))),
        Store("out", at(Size.symbol("w"), 1), "v"),
    )
    buffers = (
        KernelBuffer("x", "float32"),
        KernelBuffer("index", "int64"),
        KernelBuffer("out", "float32", "out"),
    )
    axes = (Axis("i", Size.symbol("n")), Axis("j", Size.symbol("w")))
    return Kernel("k", buffers, axes, (Loop((), body),))


@pytest.mark.parametrize("check", CHECKS[:3])
@pytest.mark.parametrize(("n", "w"), [(3, 5), (900, 2), (2, 900), (1, 1)])
def test_gathers(check, n, w):
    random = np.random.default_rng(n)
    index = random.integers(-6 if check == "check" else 0, 6, n)
    x = values("float32", 6 * w)
    sizes = {"n": n, "m": 6, "w": w}
    buffers = {"x": x, "index": index, "out": np.zeros(n * w, "float32")}
    assert_same(gathered(check), buffers, sizes)
    for bad in (6, -7, 2**62, -(2**63)):
        index[n // 2] = bad
        error = IndexOutOfBounds if check == "check_bounds" else IndexOutOfRange
        with pytest.raises(error, match=r"out of (range|bounds)"):
            interpret(gathered(check), buffers, sizes)


# ---- files -------------------------------------------------------------------------------------


def test_interpreting_is_warned_of():
    kernel = copy_kernel("float32", "float32")
    x = np.zeros(3, "float32")
    with pytest.warns(FallbackWarning, match="native code"):
        interpret(kernel, {"a": x, "out": x}, {"n": 3})


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_the_points(threads):
    kernel = fold_kernel("sum", "float32", "float32", rows=True)
    x = values("float32", 3000 * 40, plain=True)
    before = _native.set_threads(0)
    _native.set_threads(threads)
    try:
        assert_sum(kernel, {"x": x, "out": np.zeros(3000, "float32")}, {"n": 3000, "m": 40}, x)
    finally:
        _native.set_threads(before)


def test_numbers_of_all_sizes_come_back():
    body = [
        Const(f"v{n}", "int64", value)
        for n, value in enumerate([0, -1, 63, -64, 64, 2**31, 2**63 - 1, -(2**63)])
    ]
    kernel = Kernel("k", (), (), (Loop((), tuple(body)),))
    assert decode_kernels(encode_kernels([kernel])) == (kernel,)
