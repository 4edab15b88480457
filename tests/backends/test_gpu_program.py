"""The C runtime's programs for a GPU, on this processor's memory.

What stands for the driver here launches nothing: it computes on the addresses it is given, which
tells whether every argument arrives as the kernel would see it. tests/test_gpu.py has the driver's.
"""

import ctypes

import pytest
import torch

from dovetail import _native
from dovetail.backends.cuda.driver import LaunchedFunction
from dovetail.backends.cuda.products import LibraryCalls
from dovetail.backends.cuda.program import CudaProgram
from dovetail.backends.cuda.steps import SizedSteps, native_program
from dovetail.ir import Ref
from tests.backends.test_cuda import GPU, call, desc, perceptron, segment

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_void_p,
)  # fmt: skip
FLOAT = ("dtype_float32", 4, False)
TANH, FAILING = LaunchedFunction(7, 128, 0), LaunchedFunction(8, 32, 16)


class Driver:
    """Stands for the driver: function 7 is tanh of 16,384 elements, 8 fails."""

    def __init__(self):
        self.launches = []
        self.answer = self.launch
        self.function = LAUNCH(lambda *args: self.answer(*args))
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def launch(self, function, blocks, _y, _z, threads, _ty, _tz, shared, stream, places, extra):
        self.launches.append((function, blocks, threads, shared, stream, extra))
        if function != TANH.address:
            return 700
        words = (ctypes.POINTER(ctypes.c_uint64) * 4).from_address(places)
        source, target, *scratch = [word[0] for word in words]
        assert scratch == [0, 0]
        assert source % 16 == target % 16 == 0
        read, written = ((ctypes.c_float * 16384).from_address(a) for a in (source, target))
        x = torch.frombuffer(read, dtype=torch.float32)
        torch.frombuffer(written, dtype=torch.float32).copy_(x.tanh())
        return 0


def empty(sizes, strides, dtype):
    return torch.empty_strided(sizes, strides, dtype=dtype)


def program(given, functions, products=(), device=-1):
    driver = Driver()
    planned = CudaProgram(given, GPU)
    calls = LibraryCalls(products, on_gpu=False)
    steps = SizedSteps(planned, int, dict.fromkeys(planned.kernels, functions), calls)
    made = native_program(steps, driver.address, device, empty)
    return driver, steps, made


@pytest.mark.parametrize("products", [(), ("mm",)], ids=["from Python", "from C"])
def test_launches_and_products_in_order(products):
    driver, steps, made = program(perceptron(), TANH, products)
    assert [kind for kind, _ in steps.steps].count("product") == 2 * len(products)
    x, w = torch.randn(128, 128), torch.randn(128, 128) / 12
    for _ in range(3):
        inputs = [x, w]
        (found,) = made.run(inputs)
        assert inputs == []
        torch.testing.assert_close(found, ((x @ w).tanh() @ w).tanh())
        x = torch.randn(128, 128)
    function, blocks, *rest = driver.launches[0]
    assert (function, *rest) == (TANH.address, TANH.threads, TANH.shared, None, None)
    assert blocks == next(args for kind, args in steps.steps if kind == "launch")[1] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_of_every_type_are_called_from_c(dtype):
    x = desc(128, 128, dtype=dtype)
    given = segment(call("a", "mm.default", Ref("x", x), Ref("x", x), out=x), inputs={"x": x})
    _, steps, made = program(given, TANH, ("mm",))
    assert [kind for kind, _ in steps.steps] == ["empty", "product", "free"]
    value = torch.randn(128, 128).to(getattr(torch, dtype))
    torch.testing.assert_close(made.run([value]), [value @ value])


def test_inputs_that_lie_otherwise_are_left_alone():
    driver, _, made = program(perceptron(), TANH)
    good = torch.randn(128, 128)
    for bad in (good.t(), good.double(), good[:64], torch._neg_view(good), None, 3):
        inputs = [good, bad]
        assert made.run(inputs) is None
        assert len(inputs) == 2
    assert driver.launches == []
    assert made.run([good, good]) is not None


def test_memory_that_is_not_aligned_is_copied():
    x = desc(16384)
    given = segment(call("a", "tanh.default", Ref("x", x), out=x), inputs={"x": x})
    _, _, made = program(given, TANH)
    odd = torch.randn(16385)[1:]
    (found,) = made.run([odd])
    torch.testing.assert_close(found, odd.tanh())


def test_a_failed_launch_is_raised_in_the_drivers_words(monkeypatch):
    class Failed(Exception):
        pass

    def fail(code):
        raise Failed(code)

    monkeypatch.setattr("dovetail.backends.cuda.driver.raise_failed", fail)
    _, _, made = program(perceptron(), FAILING)
    with pytest.raises(Failed, match="700"):
        made.run([torch.randn(128, 128), torch.randn(128, 128)])


def test_memory_is_given_back_after_its_last_use():
    """While the second launch runs, the first product is gone, and so is what only that read."""
    _, steps, _ = program(perceptron(), TANH)
    kinds = [kind for kind, _ in steps.steps]
    first, second = ["call", "free", "empty", "launch", "free"], ["call", "free", "free", "empty"]
    assert kinds == [*first, *second, "launch", "free"]


def product(name, operands):
    return "product", ((name, *FLOAT, operands, 1.0, 1.0, None), (id, ()))


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([("free", (5,))], "a place"),
        ([("launch", (7, 1, 32, 0, [(True, 2)]))], "a place"),
        ([("jump", (5,))], "a step"),
        ([("call", (id, (1,)))], "a place"),
        ([product("mm", ((0, 0, (2,), (1, 1)),) * 3)], "more than 3 dimensions"),
        ([product("mm", ((0, 0, (2, 2), (2, 1)),) * 2)], "no product"),
        ([product("mm", ((0, 0, (2, 2), (2, 1)),) * 9)], "no product"),
        ([product("mm", ((4, 0, (2, 2), (2, 1)),) * 3)], "a place"),
        ([product("conv", ())], "no product"),
    ],
)  # fmt: skip
def test_programs_that_make_no_sense_are_refused(steps, problem):
    with pytest.raises(ValueError, match=problem):
        _native.GpuProgram(0, -1, 1, None, [], steps, None, torch.Tensor, empty, id, id)
