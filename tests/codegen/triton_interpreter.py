"""Rendered kernels under Triton's interpreter; TRITON_INTERPRET=1 must be set when it is imported.

``python -m tests.codegen.triton_interpreter GROUP`` runs a group of cases against the oracle.
"""

import itertools
import math
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from dovetail.codegen.triton.compile import function_of
from dovetail.codegen.triton.render import render
from dovetail.errors import InvalidSchedule
from dovetail.ir.dtypes import COMPUTE, DTYPES, FLOATS
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.kernel_text import parse_kernel
from dovetail.ir.ops import CHECKS, OPERATIONS, REDUCTIONS
from dovetail.ir.size import evaluate
from dovetail.ir.target import TARGETS
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.strategy import make_schedule
from dovetail.schedule.verify_schedule import verify_schedule
from dovetail.testing.kernel_reference import run_kernel

GPU = TARGETS["sm_90"]
_NAMES = {"acos": "arccos", "asin": "arcsin", "atan": "arctan", "atan2": "arctan2"}
_NAMES |= {"acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh", "pow": "power"}
_OWN = {
    "erf": np.vectorize(math.erf, otypes=["f8"]),
    "erfc": np.vectorize(math.erfc, otypes=["f8"]),
}


def _libdevice(name):
    """NumPy's function for one of libdevice: the interpreter has none of them."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    compute = _OWN.get(name) or getattr(np, _NAMES.get(name, name))

    def call(*args):
        with np.errstate(all="ignore"):
            data = np.broadcast_arrays(*(a.handle.data for a in args))
            found = np.asarray(compute(*data)).astype(data[0].dtype)
        kind = args[0].dtype
        shape = list(found.shape)
        return tl.tensor(TensorHandle(found, kind), tl.block_type(kind, shape) if shape else kind)

    return call


class _Library:
    def __getattr__(self, name):
        return _libdevice(name)


LIBDEVICE = _Library()


def _repair():
    """Make the interpreter of Triton 3.6 do what a GPU does, and work with NumPy 2.4.

    It truncates to bfloat16 where a GPU rounds, loses subnormal numbers, leaves assertions out,
    and has a loop's bound as an array of one element, which is no number for NumPy any more.
    """
    from triton.runtime import interpreter

    from dovetail.codegen.triton import helpers

    convert = interpreter._convert_float

    def converted(data, given, wanted, mode):
        if str(wanted) == "bf16" and str(given) == "fp32":
            return torch.from_numpy(np.array(data)).bfloat16().view(torch.uint16).numpy()
        if str(wanted) == "fp32" and str(given) == "bf16":
            return torch.from_numpy(np.array(data)).view(torch.bfloat16).float().numpy()
        return convert(data, given, wanted, mode)

    interpreter._convert_float = converted
    options = replace(interpreter.interpreter_builder.options, debug=True, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    helpers.power_of_two, helpers.inverse = _libdevice("exp2"), _libdevice("reciprocal")


def interpret(kernel, schedule, arrays, sizes=()):
    """Run a kernel; torch tensors of role "out" are written in place."""
    function = function_of(render(kernel, schedule), kernel.name, libdevice=LIBDEVICE)
    numbers = [evaluate(dim, dict(sizes)) for dim in call_sizes(kernel)]
    blocks = evaluate(schedule.units(kernel), dict(sizes))
    if blocks:
        with np.errstate(all="ignore"):
            function[(blocks,)](*(arrays[b.name] for b in kernel.buffers), *numbers)


def tensors(kernel, arrays):
    """NumPy's arrays as tensors of the kernel's types."""
    types = {b.name: getattr(torch, b.dtype) for b in kernel.buffers}
    return {n: torch.from_numpy(np.array(a)).to(types[n]) for n, a in arrays.items()}


def check(kernel, schedule, arrays, sizes=(), rtol=0.0):
    """A kernel under a schedule gives what the oracle gives."""
    verify_schedule(kernel, schedule, GPU)
    given, source = tensors(kernel, arrays), render(kernel, schedule)
    interpret(kernel, schedule, given, sizes)
    half = {b.name for b in kernel.buffers if COMPUTE[b.dtype] != b.dtype}
    # The oracle's arrays are NumPy's: half precision is float32 there, and rounded at the end.
    inputs = {n: np.array(a) for n, a in arrays.items()}
    for name in half:
        inputs[name] = tensors(kernel, arrays)[name].float().numpy()
    run_kernel(kernel, inputs, dict(sizes))
    for b in kernel.buffers:
        if b.role == "out":
            found = given[b.name]
            wanted = torch.from_numpy(inputs[b.name]).to(found.dtype)
            close = {"rtol": rtol, "atol": 0.0, "equal_nan": True}
            torch.testing.assert_close(found, wanted, **close, msg=lambda m: f"{m}\n{source}")


def schedules(kernel, ours=True):
    """Ours, and small ones with every kind of remainder, as far as they fit."""
    found = [make_schedule(kernel, GPU)] if ours else []
    wide = make_schedule(kernel, GPU).wide
    if any(loop.axes for loop in kernel.loops):
        for rows, columns, persistent in (
            (4, 4, False),
            (2, 16, True),
            (1, 64, True),
            (1, 8, False),
        ):
            found.append(BlockSchedule("sm_90", rows, columns, 1, persistent=persistent, wide=wide))
    else:
        found.append(BlockSchedule("sm_90", 16, warps=1, wide=wide))
    for n in range(1, len(kernel.axes)):
        along = tuple(a.name for a in kernel.axes[n:])
        found.append(BlockSchedule("sm_90", 4, 8, 1, along=along, wide=wide))
    for schedule in found:
        try:
            yield verify_schedule(kernel, schedule, GPU)
        except InvalidSchedule:
            continue


# ---- groups of cases ---------------------------------------------------------------------------


def random_kernels():
    """Random kernels under random schedules, whose results are exact."""
    from tests.native.random_kernels import RandomKernel

    done = 0
    for seed in range(40):
        made = RandomKernel(seed)
        if _points(made.kernel, made.sizes) > 600:
            continue
        fitting = list(schedules(made.kernel, ours=done % 4 == 0))
        check(made.kernel, fitting[seed % len(fitting)], made.arrays, made.sizes)
        done += 1
    assert done > 20, done


def _points(kernel, sizes):
    spaces = [
        math.prod(evaluate(a.extent, sizes) for a in (*kernel.axes, *loop.axes))
        for loop in kernel.loops
    ]
    return max(spaces)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3e38, 1e-40, math.inf, -math.inf, math.nan]


def _operands(op, dtype, count, rng):
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in FLOATS:
        low = {"acosh": 1.0, "log": 0.0, "sqrt": 0.0, "pow": 0.1}.get(op, -3.0)
        found = rng.uniform(low, 3.0, count).astype(dtype)
        found[: len(SPECIAL)] = SPECIAL
        # NumPy's sign of NaN is NaN, ours and PyTorch's 0.
        return np.nan_to_num(found) if op in ("sign", "sgn") else found
    return rng.integers(0 if dtype == "uint8" else -9, 10, count).astype(dtype)


def operations():
    """Every operation on every type it takes, along an odd number of points."""
    rng = np.random.default_rng(0)
    count = 37
    for op in OPERATIONS.values():
        if op.name in CHECKS:
            continue
        for dtype in DTYPES:
            if COMPUTE.get(dtype) != dtype:
                continue
            given = ("bool", dtype, dtype) if op.rule == "select" else (dtype,) * op.arity
            results = tuple(COMPUTE) if op.name == "cast" else (op.result(given),)
            for result in results:
                if COMPUTE[result] != result or not op.admits(given, result):
                    continue
                _operation(op, given, result, count, rng)


def _operation(op, given, result, count, rng):
    buffers = ", ".join(f"in x{n}: {t}" for n, t in enumerate(given))
    loads = "\n".join(f"v{n}: {t} = load x{n}[0 | i * (1)]" for n, t in enumerate(given))
    args = ", ".join(f"v{n}" for n in range(len(given)))
    text = f"""kernel k({buffers}, out y: {result}) over [i: {count}] {{
      loop [] {{
        {loads}
        r: {result} = {op.name}({args})
        store y[0 | i * (1)] = r
      }}
    }}"""
    arrays = {f"x{n}": _operands(op.name, t, count, rng) for n, t in enumerate(given)}
    if op.name in ("div_int", "floordiv", "floormod"):
        arrays["x1"][arrays["x1"] == 0] = 3
    if op.name == "cast" and given[0] in FLOATS and result not in FLOATS and result != "bool":
        arrays["x0"] = rng.integers(0, 100, count).astype(given[0]) + given[0].endswith("64") * 0.5
    arrays["y"] = np.zeros(count, result)
    rough = op.rule in ("float", "single") and op.c.isidentifier()
    check(parse_kernel(text), BlockSchedule("sm_90", 16, warps=1), arrays, rtol=1e-6 * rough)


STORED = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


def element_types():
    """Loads and stores of every element type, under a mask and gathered."""
    rng = np.random.default_rng(1)
    for dtype in (*STORED, "bool"):
        kind = COMPUTE[dtype]
        text = f"""kernel k(in x: {dtype}, in at: int64, out y: {dtype}) over [i: 7, j: 9] {{
          loop [] {{
            p: int64 = load at[0 | j * (1)]
            n: int64 = const 5
            on: bool = lt(p, n)
            a: {kind} = load x[1 | i * (9) | %p * (1)] if on
            store y[0 | i * (9) | j * (1)] = a
          }}
        }}"""
        arrays = {"x": _operands("", kind, 80, rng), "at": rng.integers(0, 9, 9)}
        arrays["x"][:12] = 3
        arrays["y"] = np.zeros(63, kind)
        kernel = parse_kernel(text)
        for schedule in schedules(kernel):
            check(kernel, schedule, arrays)


def reductions():
    """Every reduction and scan of every type, in each strategy, over one axis and over two."""
    rng = np.random.default_rng(2)
    for op, kind, dtype in _kinds():
        for inner in (True, False):
            kernel, arrays = _reduction(op, kind, dtype, inner, rng)
            rtol = 1e-6 if op.name in ("sum", "prod") and dtype in FLOATS else 0.0
            steps, persistent = itertools.islice(schedules(kernel), 1, 3)
            check(kernel, steps if inner else persistent, arrays, rtol=rtol)


def _kinds():
    for op in REDUCTIONS.values():
        for dtype in ("float32", "float64", "int64", "int32", "int8", "uint8", "bool"):
            kind = "int64" if op.finds_position else "bool" if op.rule == "bool" else dtype
            given = (dtype, "int64") if op.finds_position else (dtype,)
            if op.admits(given, kind):
                yield op, kind, dtype


def _reduction(op, kind, dtype, inner, rng):
    rows, first, second = 3, 2, 5
    steps = (10, 5, 1) if inner else (1, 15, 3)
    place = f"[0 | i * ({steps[0]}) | j * ({steps[1]}) | k * ({steps[2]})]"
    pair = "v, p" if op.finds_position else "v"
    position = "p: int64 = position [0 | j * (5) | k * (1)]" if op.finds_position else ""
    text = f"""kernel k(in x: {dtype}, out y: {kind}) over [i: {rows}] {{
      loop [j: {first}, k: {second}] {{
        v: {dtype} = load x{place}
        {position}
        r: {kind} = reduce {op.name}({pair})
      }}
      loop [] {{
        store y[0 | i * (1)] = r
      }}
    }}"""
    data = _operands("", dtype, rows * first * second, rng)
    if dtype in FLOATS:
        data = rng.integers(-4, 5, data.shape).astype(dtype)
        data[7] = math.nan if op.name != "sum" else 1.0
    return parse_kernel(text), {"x": data, "y": np.zeros(rows, kind)}


SOFTMAX = """kernel softmax(in x: DTYPE, in w: DTYPE, out y: DTYPE) over [i: ROWS] {
  loop [j: COLUMNS] {
    a: float32 = load x[0 | i * (COLUMNS) | j * (1)]
    top: float32 = reduce max(a)
  }
  loop [j: COLUMNS] {
    b: float32 = load x[0 | i * (COLUMNS) | j * (1)]
    c: float32 = sub(b, top)
    d: float32 = exp(c)
    total: float32 = reduce sum(d)
  }
  loop [] {
    one: float32 = const 0x1.0000000000000p+0
    inverse: float32 = div(one, total)
  }
  loop [j: COLUMNS] {
    e: float32 = load x[0 | i * (COLUMNS) | j * (1)]
    f: float32 = sub(e, top)
    g: float32 = exp(f)
    h: float32 = mul(g, inverse)
    q: float32 = load w[0 | j * (1)]
    m: float32 = mul(h, q)
    store y[0 | i * (COLUMNS) | j * (1)] = m
  }
}"""


def strategies():
    """Softmax of known and unknown sizes, transposition, a scan, in our schedules and in others."""
    rng = np.random.default_rng(3)
    for dtype, (rows, columns) in itertools.product(("float32", "bfloat16"), ((3, 257), (40, 33))):
        kernel = _sized(SOFTMAX, dtype, rows, columns)
        x = rng.standard_normal(rows * columns).astype("f4")
        arrays = {"x": x, "w": x[:columns].copy(), "y": np.zeros_like(x)}
        ours = make_schedule(kernel, GPU)
        assert ours.persistent
        for schedule in (ours, replace(ours, columns=64, persistent=False)):
            check(kernel, schedule, arrays, rtol=1e-2 if dtype == "bfloat16" else 2e-6)
    kernel = parse_kernel(
        SOFTMAX.replace("DTYPE", "float32")
        .replace("(ROWS)", "(n)")
        .replace("COLUMNS", "s")
        .replace("ROWS", "r")
    )
    for sizes in ({"r": 2, "s": 70}, {"r": 1, "s": 1}):
        count = sizes["r"] * sizes["s"]
        x = rng.standard_normal(count).astype("f4")
        arrays = {"x": x, "w": x[: sizes["s"]].copy(), "y": np.zeros_like(x)}
        ours = make_schedule(kernel, GPU)
        assert ours.wide
        assert not ours.persistent
        check(kernel, replace(ours, columns=64), arrays, sizes, rtol=2e-6)
    transpose = parse_kernel("""kernel t(in x: float32, out y: float32) over [i: 33, j: 70] {
      loop [] {
        a: float32 = load x[0 | i * (1) | j * (33)]
        store y[0 | i * (70) | j * (1)] = a
      }
    }""")
    arrays = {"x": np.arange(2310, dtype="f4"), "y": np.zeros(2310, "f4")}
    ours = make_schedule(transpose, GPU)
    assert ours.along == ("j",)
    for schedule in schedules(transpose):
        check(transpose, schedule, arrays)
    checks()


def long_rows():
    """A maximum and a sum of powers in one loop, rows in parts, and loops of different widths."""
    rng = np.random.default_rng(4)
    kernel = _sized(SOFTMAX, "float32", 5, 70)
    x = rng.standard_normal(350).astype("f4")
    x[3], x[70:140], x[150:205], x[211] = math.inf, -math.inf, -math.inf, math.nan
    arrays = {"x": x, "w": x[280:].copy(), "y": np.zeros_like(x)}
    for rows, columns in ((1, 16), (2, 32)):
        check(kernel, BlockSchedule("sm_90", rows, columns, 1, online=True), arrays, rtol=2e-6)
    half = _sized(SOFTMAX, "bfloat16", 5, 70)
    for rows, columns in ((1, 16), (2, 32)):
        schedule = BlockSchedule("sm_90", rows, columns, 16, online=True, short=True)
        check(half, schedule, arrays, rtol=1e-2)
    for rows, columns in ((2, 16), (1, 32)):
        check(kernel, BlockSchedule("sm_90", rows, columns, 1, persistent=True), arrays, rtol=2e-6)
    kernel = parse_kernel("""kernel r(in x: float32, out y: float32) over [i: 5] {
      loop [j: 12] {
        a: float32 = load x[0 | i * (12) | j * (1)]
        b: float32 = mul(a, a)
        total: float32 = reduce sum(b)
      }
      loop [k: 6] {
        c: float32 = load x[0 | i * (12) | k * (1)]
        d: float32 = mul(c, total)
        store y[0 | i * (12) | k * (1)] = d
        e: float32 = load x[6 | i * (12) | k * (1)]
        f: float32 = sub(e, d)
        store y[6 | i * (12) | k * (1)] = f
      }
    }""")
    arrays = {"x": rng.integers(-4, 5, 60).astype("f4"), "y": np.zeros(60, "f4")}
    for columns, persistent in ((16, True), (8, True), (4, True), (4, False), (16, False)):
        check(kernel, BlockSchedule("sm_90", 2, columns, 1, persistent=persistent), arrays)


WALK = """kernel k(in x: DTYPE, in g: DTYPE, in w: DTYPE, out y: DTYPE, out s: float32,
    out t: float32) over [p: PARTS, r: ROWS] {
  loop [c: COLUMNS] {
    a: float32 = load x[0 | p * (EACH) | r * (COLUMNS) | c * (1)]
    b: float32 = load w[0 | c * (1)]
    d: float32 = mul(a, b)
    e: float32 = reduce max(d)
  }
  loop [c: COLUMNS] {
    f: float32 = load x[0 | p * (EACH) | r * (COLUMNS) | c * (1)]
    h: float32 = add(f, e)
    store y[0 | p * (EACH) | r * (COLUMNS) | c * (1)] = h
  }
  loop [c: COLUMNS] {
    i: float32 = load g[0 | p * (EACH) | r * (COLUMNS) | c * (1)]
    j: float32 = load x[0 | p * (EACH) | r * (COLUMNS) | c * (1)]
    k1: float32 = mul(i, j)
    store s[0 | p * (COLUMNS) | c * (1)] += k1
    store t[0 | p * (COLUMNS) | c * (1)] += i
  }
}"""


def walks():
    """Sums of columns while rows are gone through, one and several at a time; all types, exact."""
    rng = np.random.default_rng(4)
    for dtype, rows, columns in itertools.product(FLOATS, (1, 6, 8), (1, 5, 32, 37)):
        parts, each = 3, rows * columns
        text = WALK.replace("DTYPE", dtype).replace("PARTS", "3").replace("EACH", str(each))
        text = text.replace("out s: float32", f"out s: {COMPUTE[dtype]}").replace(
            "out t: float32", f"out t: {COMPUTE[dtype]}"
        )
        text = text.replace(": float32 =", f": {COMPUTE[dtype]} =")
        kernel = _sized(text.replace("\n    out t", " out t"), dtype, rows, columns)
        arrays = {n: rng.integers(-3, 4, parts * each).astype("f8") for n in ("x", "g", "y")}
        arrays |= {"w": rng.integers(1, 3, columns).astype("f8")}
        arrays |= {n: np.full(parts * columns, np.nan) for n in ("s", "t")}
        arrays = {n: a.astype("f8" if dtype == "float64" else "f4") for n, a in arrays.items()}
        for schedule in {make_schedule(kernel, GPU), replace(make_schedule(kernel, GPU), rows=1)}:
            assert schedule.walked == ("r",)
            check(kernel, schedule, arrays)


def places():
    """Blocks that lie along the last axis alone, and blocks that do not, in rows and in columns."""
    text = """kernel k(in x: float32, in w: float32, out y: float32) over [i: 3, j: 4, k: 8] {
      loop [] {
        a: float32 = load x[0 | i * (32) | j * (8) | k * (1)]
        b: float32 = load w[0 | i * (4) | j * (1)]
        c: float32 = mul(a, b)
        p: int64 = position [0 | j * (2)]
        d: float32 = cast(p)
        e: float32 = add(c, d)
        store y[0 | i * (32) | j * (8) | k * (1)] = e
      }
    }"""
    rng = np.random.default_rng(5)
    arrays = {"x": rng.integers(-9, 9, 96).astype("f4"), "w": np.arange(12, dtype="f4")}
    arrays["y"] = np.zeros(96, "f4")
    for rows in (1, 2, 8, 16):
        check(parse_kernel(text), BlockSchedule("sm_90", rows, warps=1), arrays)
    kernel = parse_kernel("""kernel s(in x: float32, in w: float32, out y: float32) over [i: 3] {
      loop [j: 4, k: 8] {
        a: float32 = load x[0 | i * (32) | j * (8) | k * (1)]
        b: float32 = load w[0 | i * (4) | j * (1)]
        c: float32 = mul(a, b)
        r: float32 = reduce sum(c)
      }
      loop [j: 4, k: 8] {
        d: float32 = load x[0 | i * (32) | j * (8) | k * (1)]
        e: float32 = load w[0 | j * (1)]
        f: float32 = mul(d, r)
        g: float32 = add(f, e)
        store y[0 | i * (32) | j * (8) | k * (1)] = g
      }
    }""")
    for columns, persistent in ((4, False), (8, False), (16, False), (8, True), (32, True)):
        check(kernel, BlockSchedule("sm_90", 2, columns, 1, persistent=persistent), arrays)


def short_functions():
    """Functions whose results are rounded to 16 bits, and 1 + erf: to what is left of them."""
    x = np.concatenate([np.linspace(-9, 9, 4001), [1e-4, -3e-3, 0.0699, -0.0701, 80, -80]])
    x = np.concatenate([x, [math.inf, -math.inf, math.nan, -0.0, 0.0, 3.9999, -4.0001]]).astype(
        "f4"
    )
    for op, rtol in (("exp", 2e-6), ("sigmoid", 2e-6), ("tanh", 2e-5)):
        text = f"""kernel k(in x: float32, out y: bfloat16) over [i: {len(x)}] {{
          loop [] {{
            a: float32 = load x[0 | i * (1)]
            b: float32 = {op}(a)
            store y[0 | i * (1)] = b
          }}
        }}"""
        with np.errstate(all="ignore"):
            wide = x.astype("f8")
            exact = {"exp": np.exp(wide), "tanh": np.tanh(wide), "sigmoid": 1 / (1 + np.exp(-wide))}
        found = _values(parse_kernel(text), x, short=True)
        wanted = torch.from_numpy(exact[op])
        # Half a unit of bfloat16's last place, and what the function may be off.
        torch.testing.assert_close(found, wanted, rtol=2**-8 + 8 * rtol, atol=1e-38, equal_nan=True)
    kernel = parse_kernel(f"""kernel k(in x: float32, out y: float32) over [i: {len(x)}] {{
      loop [] {{
        a: float32 = load x[0 | i * (1)]
        b: float32 = erf(a)
        c: float32 = const 0x1.0000000000000p+0
        d: float32 = add(c, b)
        store y[0 | i * (1)] = d
      }}
    }}""")
    exact = torch.from_numpy(x.astype("f8")).erf() + 1
    found = _values(kernel, x)
    torch.testing.assert_close(found, exact, rtol=0, atol=2.5e-7, equal_nan=True)


def _values(kernel, x, short=False):
    given = tensors(kernel, {"x": x, "y": np.zeros(len(x))})
    interpret(kernel, BlockSchedule("sm_90", 64, warps=1, short=short), given)
    return given["y"].double()


def checks():
    """An index out of range is an assertion of the device, where it is used."""
    kernel = parse_kernel("""kernel g(in x: float32, in at: int64, out y: float32) over [i: 3] {
      loop [] {
        p: int64 = load at[0 | i * (1)]
        n: int64 = const 5
        on: bool = const 1
        q: int64 = check(p, n, on)
        a: float32 = load x[0 | %q * (1)]
        store y[0 | i * (1)] = a
      }
    }""")
    schedule = BlockSchedule("sm_90", 4, warps=1)
    arrays = {"x": np.arange(5, dtype="f4"), "at": np.array([4, -1, 0]), "y": np.zeros(3, "f4")}
    check(kernel, schedule, arrays)
    arrays["at"][1] = 5
    with pytest.raises(Exception, match="index out of range"):
        interpret(kernel, schedule, tensors(kernel, arrays))


def _sized(text, dtype, rows, columns):
    return parse_kernel(
        text.replace("DTYPE", dtype).replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
    )


GROUPS = (
    operations,
    element_types,
    reductions,
    strategies,
    long_rows,
    walks,
    places,
    short_functions,
    random_kernels,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    _repair()
    for group in GROUPS:
        if not sys.argv[1:] or group.__name__ in sys.argv[1:]:
            began = time.perf_counter()
            group()
            print(f"{group.__name__} {time.perf_counter() - began:.1f} s")
