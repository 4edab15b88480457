"""Fused attention that the C runtime calls: its arguments, and whose memory the result is.

What stands for libtorch's function here computes on this processor, with libtorch's own handles;
tests/test_gpu.py has the one for GPUs.
"""

import ctypes
from pathlib import Path

import pytest
import torch

from dovetail.backends.cuda.products import LibraryCalls
from dovetail.backends.cuda.program import CudaProgram
from dovetail.backends.cuda.steps import SizedSteps, native_program
from dovetail.ir import Input, OpCall, Ref, Segment
from tests.backends.test_cuda import GPU, call, desc
from tests.backends.test_gpu_program import TANH, Driver, empty

AT, NUMBER, REAL, INT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_double, ctypes.c_int64
FLASH = ctypes.CFUNCTYPE(NUMBER, AT, AT, AT, REAL, NUMBER, NUMBER, AT, *[AT] * 9)
EFFICIENT = ctypes.CFUNCTYPE(NUMBER, AT, AT, AT, AT, NUMBER, REAL, NUMBER, *[AT] * 5)
CUDNN = ctypes.CFUNCTYPE(NUMBER, AT, AT, AT, AT, NUMBER, REAL, NUMBER, NUMBER, AT, *[AT] * 9)
TORCH = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
SHAPE = (2, 4, 32, 64)  # 16,384 elements
F = torch.nn.functional


def tensor_of(handle):
    """A handle's tensor."""
    rank = INT()
    sizes, strides = ctypes.POINTER(INT)(), ctypes.POINTER(INT)()
    data = AT()
    for name, to in (("dim", rank), ("sizes", sizes), ("strides", strides), ("data_ptr", data)):
        assert getattr(TORCH, f"aoti_torch_get_{name}")(AT(handle), ctypes.byref(to)) == 0
    shape, steps = sizes[: rank.value], strides[: rank.value]
    count = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1
    memory = (ctypes.c_float * count).from_address(data.value)
    return torch.frombuffer(memory, dtype=torch.float32).as_strided(shape, steps)


class Attention:
    """Stands for libtorch's functions."""

    def __init__(self, problem=""):
        self.problem, self.calls, self.kept = problem, [], []
        self.flash, self.efficient = FLASH(self._flash), EFFICIENT(self._efficient)
        self.cudnn = CUDNN(self._cudnn)

    def functions(self):
        names = ("flash", "efficient", "cudnn")
        return {n: ctypes.cast(getattr(self, n), AT).value for n in names}

    def _flash(self, q, k, v, dropout, causal, debug, scale, out, *_):
        assert (dropout, debug) == (0.0, 0)
        return self._attend("flash", (q, k, v), None, causal, scale, out)

    def _efficient(self, q, k, v, bias, sums, dropout, causal, scale, out, *_):
        assert (dropout, sums) == (0.0, 0)
        mask = tensor_of(AT.from_address(bias).value) if bias else None
        return self._attend("efficient", (q, k, v), mask, causal, scale, out)

    def _cudnn(self, q, k, v, bias, sums, dropout, causal, debug, scale, out, *_):
        assert (dropout, sums, debug) == (0.0, 0, 0)
        mask = tensor_of(AT.from_address(bias).value) if bias else None
        return self._attend("cudnn", (q, k, v), mask, causal, scale, out)

    def _attend(self, name, given, mask, causal, scale, out):
        self.calls.append((name, bool(causal), mask is not None))
        if self.problem == "refused":
            return 1
        factor = REAL.from_address(scale).value if scale else None
        made = attend(*map(tensor_of, given), mask, bool(causal), factor)
        if self.problem == "strides":
            made = made.mT.contiguous().mT
        self.kept.append(made)  # memory stays as long as this does
        sizes, strides = (INT * 4)(*made.shape), (INT * 4)(*made.stride())
        return TORCH.aoti_torch_create_tensor_from_blob(
            AT(made.data_ptr()), INT(4), sizes, strides, INT(0),
            TORCH.aoti_torch_dtype_float32(), TORCH.aoti_torch_device_type_cpu(), 0, AT(out),
        )  # fmt: skip


def attend(q, k, v, mask=None, causal=False, scale=None):
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


def flash(causal=False, **kwargs):
    return "flash", (0.0, causal), kwargs


def efficient(bias=None, causal=False):
    return "efficient", (bias, False, 0.0, causal), {}


def segment(what, outputs=("b",)):
    """Attention of what a kernel makes, and a kernel behind it."""
    name, rest, kwargs = what
    x, number = desc(*SHAPE), desc()
    before = call("t", "tanh.default", Ref("q", x), out=x)
    operands = (Ref("t", x), Ref("k", x), Ref("v", x), *rest)
    op = f"aten._scaled_dot_product_{name}_attention.default"
    attention = OpCall("a", op, operands, kwargs, (x, number, number, number))
    after = call("b", "tanh.default", Ref("a", x, (0,)), out=x)
    inputs = [Input(n, x) for n in "qkv"]
    inputs += [Input("mask", rest[0].desc)] if isinstance(rest[0], Ref) else []
    handed = {"b": Ref("b", x), "a": Ref("a", x, (0,)), "sums": Ref("a", number, (1,))}
    calls = (before, attention, after)
    return Segment("test", tuple(inputs), calls, tuple(handed[n] for n in outputs))


def built(given, attention):
    driver, planned = Driver(), CudaProgram(given, GPU)
    calls = LibraryCalls((), False, None, False, attention.functions())
    steps = SizedSteps(planned, int, dict.fromkeys(planned.kernels, TANH), calls)
    return driver, steps, native_program(steps, driver.address, -1, empty)


MASK = Ref("mask", type(desc())("float32", (2, 4, 32, 32), (32, 0, 0, 1), "cuda:0"))
CASES = {
    "flash": (flash(), {}),
    "causal": (flash(causal=True), {"causal": True}),
    "scaled": (flash(scale=0.25), {"scale": 0.25}),
    "efficient": (efficient(), {}),
    "mask": (efficient(MASK), {}),
    "cudnn": (("cudnn", (None, True, 0.0, True), {}), {"causal": True}),
    "cudnn, mask": (("cudnn", (MASK, False), {"scale": 0.25}), {"scale": 0.25}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_called_from_c(name):
    what, how = CASES[name]
    attention = Attention()
    _driver, steps, made = built(segment(what), attention)
    kinds = [kind for kind, _ in steps.steps if kind != "free"]  # which is of inputs here
    assert kinds == ["launch", "attention", "empty", "launch", "drop"]
    for _ in range(3):
        values = [torch.randn(SHAPE) for _ in range(3)]
        mask = torch.randn(2, 1, 1, 32).expand(2, 4, 32, 32) if "mask" in name else None
        given = [*values, *([] if mask is None else [mask])]
        (found,) = made.run(list(given))
        wanted = attend(values[0].tanh(), *values[1:], mask, **how).tanh()
        torch.testing.assert_close(found, wanted)
    assert attention.calls == [(what[0], how.get("causal", False), "mask" in name)] * 3


@pytest.mark.parametrize(
    "given",
    [
        segment(flash(), ("b", "a")),
        segment(flash(), ("b", "sums")),
        segment(("flash", (0.5,), {})),
        segment(("efficient", (None, True, 0.1), {})),
        segment(("cudnn", (None, False, 0.0, False, True), {})),
    ],
    ids=["handed out", "sums are read", "dropout", "dropout of the other", "debug mask"],
)
def test_other_attention_is_called_from_python(given):
    _, steps, _ = built(given, Attention())
    assert "attention" not in [kind for kind, _ in steps.steps]


@pytest.mark.parametrize("problem", ["refused", "strides"])
def test_what_is_not_as_described_is_called_from_python(problem, monkeypatch):
    def called(q, k, v, *_):
        return attend(q, k, v), None, None, None

    given, attention = segment(flash()), Attention(problem)
    monkeypatch.setattr("dovetail.backends.cuda.steps.resolve_op", lambda _: called)
    _, _, made = built(given, attention)
    for _ in range(2):
        values = [torch.randn(SHAPE) for _ in range(3)]
        (found,) = made.run(list(values))
        torch.testing.assert_close(found, attend(values[0].tanh(), *values[1:]).tanh())
    assert len(attention.calls) == 1  # it would be so again
