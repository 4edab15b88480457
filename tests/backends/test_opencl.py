"""The OpenCL renderer: kernels against the oracle, models against eager, copies counted."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from dovetail import errors, history, registry
from dovetail.backends.opencl import OpenCLBackend
from dovetail.backends.rendered.backend import NoDevice, Opened
from dovetail.backends.rendered.program import RenderedProgram
from dovetail.codegen.c import CRenderer
from dovetail.codegen.opencl.render import PRELUDE, render
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Reduce,
    Store,
)
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.size import Size
from dovetail.testing.kernel_reference import run_kernel
from tests.backends.plain_c import Compiler
from tests.codegen.kernels import PROGRAMS, plan_of
from tests.codegen.random_graphs import check
from tests.differential import assert_same
from tests.models import GPT, ResNet

F = nn.functional


@pytest.fixture(scope="module")
def opened():
    """The OpenCL device in use, or the reason why there is none."""
    backend = registry.get_backend("opencl")
    answer = backend.available()
    if not answer:
        pytest.skip(answer.reason)
    return backend.opened


@pytest.fixture(autouse=True)
def needs_a_device(request):
    """Tests of the backend are skipped where there is no device, with the reason."""
    if "target" not in request.fixturenames:
        request.getfixturevalue("opened")


@pytest.fixture(scope="module", params=["opencl", "c"])
def target(request):
    """A device and how kernels are written for it: OpenCL C, and plain C by the same rules."""
    if request.param == "opencl":
        return request.getfixturevalue("opened"), PRELUDE, render
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return Opened(Compiler()), CRenderer.prelude, lambda kernel: CRenderer(kernel).render()


def run_on_device(target, kernel, arrays, sizes=()):
    """A kernel on copies of flat arrays; the copies."""
    opened, prelude, write = target
    (function,) = opened.functions(prelude + write(kernel), [kernel.name])
    arrays = {name: array.copy() for name, array in arrays.items()}
    memory = {}
    for name, array in arrays.items():
        memory[name] = opened.device.allocate(max(array.nbytes, 1))
        opened.upload(memory[name], array.ctypes.data, array.nbytes)
    points = 1
    for axis in kernel.axes:
        points *= axis.extent if isinstance(axis.extent, int) else dict(sizes)[axis.extent]
    flag = opened.device.allocate(8)
    buffers = [memory[b.name] for b in kernel.buffers]
    opened.device.launch(function, points, buffers, [n for _, n in sizes], _flag(kernel, flag))
    for name, array in arrays.items():
        opened.download(memory[name], array.ctypes.data, array.nbytes)
    return arrays


def _flag(kernel, flag):
    checks = [i for i in kernel.instructions() if isinstance(i, Apply) and "check" in i.op]
    return flag if checks else None


# ---- kernels against the oracle ----------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_of_programs(target, name):
    """Every kernel of a program gives what the interpreter of kernel IR gives."""
    fn, args = PROGRAMS[name]
    plan = plan_of(fn, *args)
    memory = {}
    by_shape = {tuple(value.shape): value for value in args}
    for given in plan.segment.inputs:
        value = by_shape[given.desc.shape]
        memory[plan.values[given.name, ()]] = value.contiguous().numpy().reshape(-1).copy()
    for step in plan.steps:
        for value in step.buffers.values():
            if value not in memory:
                memory[value] = np.zeros(int(np.prod(value.shape)), dtype=value.dtype)
        arrays = {n: memory[v] for n, v in step.buffers.items()}
        found = run_on_device(target, step.kernel, arrays)
        run_kernel(step.kernel, arrays)
        for buffer, expected in arrays.items():
            np.testing.assert_allclose(found[buffer], expected, rtol=2e-6, atol=1e-6)


UNARY = {
    "float32": (
        "neg abs isnan floor ceil trunc round sqrt sign exp exp2 expm1 log log2 log10 log1p "
        "sin cos tan tanh sigmoid erf erfc asin acos atan "
        "sinh cosh asinh acosh atanh round_half round_bfloat16"
    ),
    "float64": "neg abs floor sqrt exp sigmoid",
    "int64": "neg abs not sign",
    "int8": "neg abs not",
    "bool": "not",
}
BINARY = {
    "float32": "add sub mul div min max pow copysign atan2 fmod hypot eq lt ge",
    "int64": "add sub mul floordiv floormod div_int min max pow and shl shr ne le",
    "int16": "add mul floordiv floormod xor",
    "uint8": "add sub floordiv floormod max shr",
    "bool": "add mul and or xor eq",
}
RESULTS_BOOL = {"eq", "ne", "lt", "le", "gt", "ge", "isnan"}


def elementwise(op, dtype, count):
    """out[i] = op(a[i], b[i], …)."""
    result = "bool" if op in RESULTS_BOOL else dtype
    here = Index(0, (("i", 1),))
    loads = [Load(f"v{n}", dtype, f"a{n}", here) for n in range(count)]
    names = tuple(load.name for load in loads)
    body = (*loads, Apply("r", result, op, names), Store("out", here, "r"))
    buffers = (
        *(KernelBuffer(f"a{n}", dtype) for n in range(count)),
        KernelBuffer("out", result, "out"),
    )
    return verify_kernel(Kernel(f"{op}_{dtype}", buffers, (Axis("i", 300),), (Loop((), body),)))


def sample(dtype, count, generator, *, divisor=False):
    if dtype == "bool":
        return generator.integers(0, 2, count).astype(bool)
    if dtype.startswith("float"):
        values = generator.standard_normal(count).astype(dtype) * 3
        values[:4] = [np.inf, -np.inf, np.nan, 0][:count]
        return values
    values = generator.integers(0 if dtype == "uint8" else -60, 60, count)
    return np.where(values == 0, 3, values).astype(dtype) if divisor else values.astype(dtype)


@pytest.mark.parametrize(
    ("op", "dtype", "count"),
    [(op, dtype, 1) for dtype, ops in UNARY.items() for op in ops.split()]
    + [(op, dtype, 2) for dtype, ops in BINARY.items() for op in ops.split()],
)
def test_operations(target, op, dtype, count):
    kernel = elementwise(op, dtype, count)
    generator = np.random.default_rng(0)
    arrays = {b.name: sample(b.dtype, 300, generator) for b in kernel.buffers}
    if op.startswith("sh"):
        arrays["a1"] = np.abs(arrays["a1"]) % 8
    if op in ("floordiv", "floormod", "div_int"):
        arrays["a1"] = sample(dtype, 300, generator, divisor=True)
    found = run_on_device(target, kernel, arrays)["out"]
    expected = {name: array.copy() for name, array in arrays.items()}
    run_kernel(kernel, expected)
    if op == "sign":  # ATen's sign of a NaN is 0, NumPy's is NaN
        expected["out"] = np.nan_to_num(expected["out"], nan=0.0)
    tolerance = 3e-6 if dtype == "float32" else 1e-14 if dtype == "float64" else 0
    np.testing.assert_allclose(found, expected["out"], rtol=tolerance, atol=tolerance)


def reduction(op, dtype, rows, row):
    """out[i] = the reduction of x[i, :], with symbolic extents."""
    n, m = Size.symbol("n"), Size.symbol("m")
    value = Load("a", dtype, "x", Index(0, (("i", m), ("j", 1))))
    args = ("a",)
    body = [value]
    if op.startswith("arg"):
        from dovetail.ir.kernel import Position

        body.append(Position("p", Index(0, (("j", 1),))))
        args = ("a", "p")
    result = "int64" if op.startswith("arg") else dtype
    body.append(Reduce("r", result, op, args))
    store = Loop((), (Store("out", Index(0, (("i", 1),)), "r"),))
    buffers = (KernelBuffer("x", dtype), KernelBuffer("out", result, "out"))
    kernel = Kernel(f"fold_{op}", buffers, (Axis("i", n),), (Loop((Axis("j", m),), body), store))
    sizes = [(n, rows), (m, row)]
    return kernel, [(s, v) for s in dict.fromkeys(kernel.dims()) for t, v in sizes if s == t]


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize(("rows", "row"), [(1, 5000), (7, 33), (130, 1), (3, 0)])
def test_folds(target, op, dtype, rows, row):
    kernel, sizes = reduction(op, dtype, rows, row)
    x = sample(dtype, rows * row, np.random.default_rng(1)) if row < 100 else None
    if x is None:
        x = np.random.default_rng(1).standard_normal(row).astype("float32").astype(dtype)
    if op == "prod":
        x = (np.sign(x) + (x == 0)).astype(dtype)
    out = np.zeros(rows, dtype="int64" if op.startswith("arg") else dtype)
    found = run_on_device(target, kernel, {"x": x, "out": out}, sizes)["out"]
    run_kernel(kernel, {"x": x, "out": out}, {"n": rows, "m": row})
    np.testing.assert_allclose(found, out, rtol=1e-5, atol=1e-5)


def test_long_sums_are_as_exact_as_eager(target):
    kernel, sizes = reduction("sum", "float32", 1, 1_000_000)
    x = np.random.default_rng(2).random(1_000_000, dtype="float32")
    found = run_on_device(target, kernel, {"x": x, "out": np.zeros(1, "float32")}, sizes)["out"]
    assert abs(found[0] - x.astype("float64").sum()) / x.size < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_in_memory(target, dtype):
    """Every seventh number there is goes in and out unchanged but for its sign."""
    bits = np.arange(0, 2**16, 7).astype("uint16")
    kernel = dataclasses.replace(
        elementwise("neg", "float32", 1),
        name=f"negate_{dtype}",
        buffers=(KernelBuffer("a0", dtype), KernelBuffer("out", dtype, "out")),
        axes=(Axis("i", bits.size),),
    )
    found = run_on_device(target, kernel, {"a0": bits, "out": np.zeros_like(bits)})["out"]
    given, negated = (
        torch.from_numpy(b.view("int16").copy()).view(getattr(torch, dtype)) for b in (bits, found)
    )
    torch.testing.assert_close(negated, -given, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_as_pytorch_rounds(dtype):
    x = torch.cat([torch.randn(500) * 100, torch.tensor([65504.0, 1e-7, torch.inf, torch.nan])])
    compiled = torch.compile(lambda x: (x * 1.7).to(getattr(torch, dtype)), backend="opencl")
    expected = (x * 1.7).to(getattr(torch, dtype))
    torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0, equal_nan=True)


def test_a_name_that_is_no_identifier_is_refused():
    kernel = elementwise("neg", "float32", 1)
    with pytest.raises(InvalidKernel, match="is not a name"):
        render(dataclasses.replace(kernel, name="x(); evil"))


def test_constants_are_written_exactly(target):
    values = {"float32": [0.1, -1e-38, float("inf"), -3.0], "int64": [-(2**63), 2**63 - 1, -1]}
    for dtype, numbers in values.items():
        for number in numbers:
            body = (Const("c", dtype, number), Store("out", Index(), "c"))
            kernel = Kernel("fixed", (KernelBuffer("out", dtype, "out"),), (), (Loop((), body),))
            found = run_on_device(target, kernel, {"out": np.zeros(1, dtype)})["out"]
            assert found[0] == np.array(number, dtype)


# ---- programs against eager --------------------------------------------------------------------


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(24), nn.Parameter(torch.randn(24))

    def forward(self, x):
        return F.softmax(F.gelu(self.norm(x)) * self.scale, -1).sum(1)


CASES = {
    "pointwise": (lambda x, y: torch.tanh(x) * y + x.exp(), (torch.randn(5, 7), torch.randn(7))),
    "softmax": (lambda x: torch.log_softmax(x, 0), (torch.randn(9, 11),)),
    "reductions": (lambda x: (x.sum(), x.amax(0), x.var(1), x.argmin(-1)), (torch.randn(8, 9),)),
    "gather": (lambda x, i: (x[i], F.embedding(i, x)), (torch.randn(9, 3), torch.tensor([2, -0]))),
    "views": (lambda x: (x.t().reshape(-1)[1:] + 1, x.view(-1)), (torch.randn(4, 6),)),
    "strides": (lambda x: x.transpose(0, 1) * 2, (torch.randn(4, 6).t(),)),
    "cat": (lambda x: torch.cat([x, x * 2, x[:, :1]], 1), (torch.randn(3, 5),)),
    "integers": (lambda x: (x // 3, x % 5, x << 2, x.sum()), (torch.arange(-9, 9),)),
    "double": (lambda x: torch.erf(x.double()).sum(0), (torch.randn(6, 4),)),
    "empty": (lambda x: (x + 1, x.sum(0)), (torch.randn(0, 4),)),
    "a write": (lambda x: x.mul_(2) + 1, (torch.randn(4),)),
    "a product": (lambda x: F.relu(x @ x) + 1, (torch.randn(4, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name):
    fn, args = CASES[name]
    assert_same(fn, *args, backend="opencl", calls=2)


def test_backward():
    assert_same(Norms(), torch.randn(2, 3, 24, requires_grad=True), backend="opencl", grad=True)


@pytest.mark.parametrize("grad", [False, True])
def test_dynamic_shapes(grad):
    model = Norms()
    compiled = torch.compile(model, backend="opencl", dynamic=True)
    for rows in (2, 5, 3, 2):
        x = torch.randn(rows, 4, 24, requires_grad=grad)
        with torch.set_grad_enabled(grad):
            found, expected = compiled(x), model(x)
        torch.testing.assert_close(found, expected)
        if grad:
            for left, right in zip(
                torch.autograd.grad(found.sin().sum(), [x, model.scale]),
                torch.autograd.grad(expected.sin().sum(), [x, model.scale]),
                strict=True,
            ):
                torch.testing.assert_close(left, right)


@pytest.mark.e2e
@pytest.mark.parametrize("grad", [False, True])
def test_a_transformer(grad):
    tokens = torch.randint(50, (2, 12)), torch.randint(50, (2, 12))
    assert_same(GPT(), *tokens, backend="opencl", grad=grad)
    placed = {v.backend for c in history.recent() for g in c.graphs for v in g.verdicts}
    assert placed == {"opencl", "aten"}


@pytest.mark.e2e
def test_a_residual_network():
    assert_same(ResNet(), torch.randn(2, 3, 16, 16), backend="opencl", grad=True)


@pytest.mark.parametrize("first", [0, 6])
def test_random_graphs(first):
    problems = [p for seed in range(first, first + 6) if (p := check(seed, "opencl"))]
    assert not problems, "\n".join(problems)


def test_an_index_out_of_range_raises_what_eager_raises_and_the_next_call_works():
    table = torch.randn(5, 3)
    compiled = torch.compile(lambda i: F.embedding(i, table) * 2, backend="opencl")
    with pytest.raises(IndexError, match="index out of range"):
        compiled(torch.tensor([1, 5]))
    torch.testing.assert_close(compiled(torch.tensor([1, 4])), table[[1, 4]] * 2)


# ---- copies ------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))

    def forward(self, x):
        return torch.tanh(x * self.scale) + self.shift


def copies(opened, call):
    """How many copies went to the device and back during a call."""
    before = dict(opened.counters)
    call()
    return tuple(opened.counters[k] - before[k] for k in ("uploads", "downloads", "launches"))


def test_weights_are_sent_once_and_again_only_when_they_change(opened):
    model, x = Scaled(), torch.randn(4, 16)
    compiled = torch.compile(model, backend="opencl")
    with torch.no_grad():
        assert copies(opened, lambda: compiled(x)) == (3, 1, 1)
        assert copies(opened, lambda: compiled(x)) == (1, 1, 1)
        model.scale.mul_(2)
        assert copies(opened, lambda: compiled(x)) == (2, 1, 1)
        torch.testing.assert_close(compiled(x), model(x))


def test_an_optimiser_step_sends_what_it_changed(opened):
    model, x = Scaled(), torch.randn(4, 16)
    compiled = torch.compile(model, backend="opencl")
    optimiser = torch.optim.SGD([model.scale], lr=0.1)
    for _ in range(2):
        compiled(x).sum().backward()
    first = copies(opened, lambda: compiled(x))
    compiled(x).sum().backward()
    optimiser.step()
    second = copies(opened, lambda: compiled(x))
    assert second[0] == first[0] + 1


def test_views_of_inputs_are_not_copied(opened):
    compiled = torch.compile(lambda x: (x.t(), x + 1), backend="opencl")
    x = torch.randn(3, 4)
    compiled(x)
    assert copies(opened, lambda: compiled(x)) == (1, 1, 1)
    assert compiled(x)[0].data_ptr() == x.data_ptr()


def test_a_kernel_is_compiled_once(opened):
    x = torch.randn(3, 41)
    torch.compile(lambda x: x * 41 + 1, backend="opencl")(x)
    before = opened.counters["builds"]
    torch.compiler.reset()
    torch.compile(lambda x: x * 41 + 1, backend="opencl")(x)
    assert opened.counters["builds"] == before


# ---- placement and blobs -----------------------------------------------------------------------


def test_library_operations_are_refused_with_a_reason():
    torch.compile(lambda x: torch.relu(x @ x), backend="opencl")(torch.randn(4, 4))
    (graph,) = history.recent()[-1].graphs
    verdicts = {v.op: v for v in graph.verdicts}
    assert verdicts["aten.relu.default"].backend == "opencl"
    assert verdicts["aten.mm.default"].backend == "aten"
    assert verdicts["aten.mm.default"].refusals == (
        ("opencl", "a product that a library is better at"),
    )


def test_running_sums_need_double_precision(opened, monkeypatch):
    def verdicts(fn, x):
        torch.testing.assert_close(torch.compile(fn, backend="opencl")(x), fn(x))
        return {v.op: v.backend for v in history.recent()[-1].graphs[0].verdicts}

    x = torch.randn(4, 30)
    assert verdicts(lambda x: x.cumsum(1) + 1, x)["aten.cumsum.default"] == "opencl"
    monkeypatch.setattr(opened.device, "has_double", False)
    assert verdicts(lambda x: x.cumsum(1) + 2, x)["aten.cumsum.default"] == "aten"


def test_a_blob_is_portable_and_loads_in_a_new_backend():
    segment = plan_of(lambda x: torch.softmax(x, -1), torch.randn(3, 5)).segment
    blob = registry.get_backend("opencl").compile(segment)
    assert blob.is_portable
    run = registry.get_backend("opencl").load(blob)
    x = torch.randn(3, 5)
    torch.testing.assert_close(run([x]), [torch.softmax(x, -1)])


def test_memory_is_reused():
    """A chain of stored values needs less memory than all of them together."""
    plan = plan_of(lambda x: [x := (x.softmax(0) + x.softmax(1)) for _ in range(6)][-1],
                   torch.randn(16, 16))  # fmt: skip
    program = RenderedProgram(plan.segment)
    assert len(program.launches) > 4
    assert len(set(program.lives.values())) > 2


def test_without_the_package_or_a_device_it_is_unavailable_and_says_why(monkeypatch):
    import pyopencl

    backend = type("Other", (OpenCLBackend,), {"name": "other"})()
    monkeypatch.setattr(pyopencl, "get_platforms", list)
    assert "no OpenCL device" in backend.available().reason
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install 'dovetail[opencl]'" in backend.available().reason
    assert not backend.available()


def test_source_that_does_not_compile_falls_back(monkeypatch):
    """A renderer's mistake costs a warning, not the answer; strict mode raises."""
    broken = type("Broken", (OpenCLBackend,), {"name": "broken", "render": lambda *_: "nonsense"})
    with registry.registered_backend(broken):
        x = torch.randn(3)
        fallen = torch.compile(lambda x: x * 2 + 5, backend="broken", options={"strict": False})
        with pytest.warns(errors.FallbackWarning, match="falls back from broken"):
            torch.testing.assert_close(fallen(x), x * 2 + 5)
        strict = torch.compile(lambda x: x * 2 + 6, backend="broken", options={"strict": True})
        with pytest.raises(errors.BackendFailed, match="broken"):
            strict(x)


def test_a_driver_that_cannot_compile_is_no_device(target, monkeypatch):
    pytest.importorskip("pyopencl")
    monkeypatch.setattr("dovetail.backends.opencl.backend._OPTIONS", ("-no-such-option",))
    with pytest.raises(NoDevice, match=r"no OpenCL (driver compiles|device)"):
        OpenCLBackend().open()
