"""Products by cuBLASLt: how they are described, and what the C runtime calls.

What stands for the library here computes on the memory that it is given, by the layouts that it
was told of; tests/test_gpu.py has NVIDIA's.
"""

import ctypes
import gc

import pytest
import torch

from dovetail.backends.cuda import cublas
from dovetail.backends.cuda.cublas import BlasLibrary, Matrix, described
from dovetail.backends.cuda.memory import lifetime, plan_arena
from dovetail.backends.cuda.products import LibraryCalls
from dovetail.backends.cuda.program import CudaProgram
from dovetail.backends.cuda.steps import SizedSteps, native_program
from dovetail.ir import Ref
from dovetail.runtime.sized import TensorLayout
from tests.backends.test_cuda import GPU, call, desc, segment
from tests.backends.test_gpu_program import TANH, Driver

NAMES = ("mm", "bmm", "addmm", "baddbmm")
WORD, NUMBER, AT = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
DTYPES = {0: torch.float32, 2: torch.float16, 14: torch.bfloat16}
SIGNATURES = {
    "Create": [AT],
    "MatmulDescCreate": [AT, NUMBER, NUMBER],
    "MatrixLayoutCreate": [AT, NUMBER, WORD, WORD, ctypes.c_int64],
    "MatmulPreferenceCreate": [AT],
    "MatmulDescSetAttribute": [AT, NUMBER, AT, ctypes.c_size_t],
    "MatrixLayoutSetAttribute": [AT, NUMBER, AT, ctypes.c_size_t],
    "MatmulPreferenceSetAttribute": [AT, NUMBER, AT, ctypes.c_size_t],
    "MatmulDescDestroy": [AT],
    "MatrixLayoutDestroy": [AT],
    "MatmulPreferenceDestroy": [AT],
    "MatmulAlgoGetHeuristic": [AT] * 7 + [NUMBER, AT, AT],
    "Matmul": [AT] * 14 + [ctypes.c_size_t, AT],
}


class Functions:
    """Stands for cuBLASLt."""

    def __init__(self, workspace=0, refuse=""):
        self.workspace, self.refuse = workspace, refuse
        self.made, self.calls, self.held = {}, [], []
        for name, types in SIGNATURES.items():
            function = ctypes.CFUNCTYPE(NUMBER, *types)(self._checked(name))
            setattr(self, f"cublasLt{name}", function)

    def _checked(self, name):
        kind = next((k for k in ("Create", "SetAttribute", "Destroy") if name.endswith(k)), name)
        does = getattr(self, f"_{kind.lower()}")

        def run(*args):
            self.calls.append(name)
            return 15 if name == self.refuse else does(*args) or 0

        return run

    def _create(self, at, *told):
        number = len(self.made) + 1
        self.made[number] = {"told": told}
        ctypes.c_void_p.from_address(at).value = number

    def _setattribute(self, of, attribute, value, size):
        self.made[of][attribute] = int.from_bytes(ctypes.string_at(value, size), "little")

    def _destroy(self, of):
        del self.made[of]

    def _matmulalgogetheuristic(self, handle, product, a, b, c, d, asked, wanted, found, count):
        assert self.made[asked][1] == cublas.WORKSPACE
        result = cublas._Heuristic.from_address(found)
        result.algorithm[0], result.workspace = 77, self.workspace
        ctypes.c_int.from_address(count).value = 1

    def _matmul(self, handle, product, alpha, a, al, b, bl, beta, c, cl, d, dl, algorithm, space,
                size, stream):  # fmt: skip
        assert ctypes.c_uint64.from_address(algorithm).value == 77
        assert size == self.workspace
        assert bool(space) == bool(size)
        if space:
            ctypes.memset(space, 255, size)  # whoever else believes to own it will see
        told = self.made[product]
        left, right = (
            m.mT if told[n] else m for m, n in ((self._matrix(a, al), 3), (self._matrix(b, bl), 4))
        )
        scale, of_c = (ctypes.c_float.from_address(x).value for x in (alpha, beta))
        made = scale * (left.double() @ right.double())
        if of_c:
            made += of_c * self._matrix(c, cl).double()
        if told.get(7) == 4:
            rows = made.shape[-2]
            made += self._elements(told[8], rows, self._dtype(dl)).double()[:, None]
        self._matrix(d, dl).copy_(made)

    def _dtype(self, layout):
        return DTYPES[self.made[layout]["told"][0]]

    def _elements(self, at, count, dtype):
        size = torch.empty((), dtype=dtype).element_size()
        return torch.frombuffer((ctypes.c_char * (count * size)).from_address(at), dtype=dtype)

    def _matrix(self, at, layout):
        told = self.made[layout]
        _, rows, columns, leading = told["told"]
        batch, stride = told.get(5, 1), told.get(6, 0)
        count = (batch - 1) * stride + (columns - 1) * leading + rows
        flat = self._elements(at, count, self._dtype(layout))
        found = flat.as_strided((batch, rows, columns), (stride, 1, leading))
        return found if 5 in told else found[0]


def aligned(sizes, strides, dtype):
    """Memory as PyTorch's allocator for GPUs makes it."""
    count = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    item = torch.empty((), dtype=dtype).element_size()
    memory = torch.zeros(count * item + 512, dtype=torch.uint8)
    start = -memory.data_ptr() % 512
    return memory[start : start + count * item].view(dtype).as_strided(sizes, strides)


def on_aligned(tensor):
    found = aligned(tensor.shape, tensor.stride(), tensor.dtype)
    return found.copy_(tensor)


def numbers(desc, dtype):
    """Random ones, each once where several elements share an address."""
    found = aligned(desc.shape, desc.strides, dtype)
    found[tuple(slice(0, None if stride else 1) for stride in desc.strides)].normal_()
    return found


def built(given, functions, tf32=False):
    driver, planned = Driver(), CudaProgram(given, GPU)
    calls = LibraryCalls(NAMES, False, BlasLibrary(functions), tf32)
    steps = SizedSteps(planned, int, dict.fromkeys(planned.kernels, TANH), calls)
    return driver, steps, native_program(steps, driver.address, -1, aligned)


def matrix(*shape, strides=None, dtype="float32"):
    plain = desc(*shape, dtype=dtype)
    return plain if strides is None else type(plain)(dtype, shape, strides, plain.device)


CASES = {
    "rows": ("mm", matrix(96, 128), matrix(128, 136)),
    "transposed": ("mm", matrix(96, 128, strides=(1, 96)), matrix(128, 136, strides=(1, 128))),
    "parts of rows": ("mm", matrix(96, 128, strides=(140, 1)), matrix(128, 136, strides=(160, 1))),
    "one row": ("mm", matrix(1, 1200, strides=(3, 1)), matrix(1200, 1024)),
    "one column": ("mm", matrix(1200, 1024), matrix(1024, 1)),
    "one term": ("mm", matrix(1200, 1), matrix(1, 1024)),
    "bias": ("addmm", matrix(136), matrix(96, 128), matrix(128, 136, strides=(1, 128))),
    "a row": ("addmm", matrix(1, 136), matrix(96, 128), matrix(128, 136)),
    "expanded": ("addmm", matrix(96, 136, strides=(0, 1)), matrix(96, 128), matrix(128, 136)),
    "a matrix": ("addmm", matrix(96, 136), matrix(96, 128), matrix(128, 136)),
    "batches": ("bmm", matrix(5, 96, 64), matrix(5, 64, 72, strides=(4608, 1, 64))),
    "one batch": ("bmm", matrix(1, 96, 128), matrix(1, 128, 136)),
    "the same at each": ("bmm", matrix(5, 96, 64), matrix(5, 64, 72, strides=(0, 72, 1))),
    "batches added": ("baddbmm", matrix(5, 96, 72), matrix(5, 96, 64), matrix(5, 64, 72)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scales", [{}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_products_are_what_pytorch_makes_of_them(name, scales, dtype):
    op, *operands = CASES[name]
    operands = [type(d)(dtype, d.shape, d.strides, d.device) for d in operands]
    scales = scales if "add" in op else {}
    out = desc(*operands[-2].shape[:-1], operands[-1].shape[-1], dtype=dtype)
    refs = [Ref(f"x{n}", d) for n, d in enumerate(operands)]
    product = type(call("a", "", out=out))("a", f"aten.{op}.default", tuple(refs), scales, out)
    functions = Functions(workspace=256)
    _, _, made = built(segment(product, inputs={r.name: r.desc for r in refs}), functions)
    values = [numbers(d, getattr(torch, dtype)) for d in operands]
    exact = getattr(torch, op)(*(v.double() for v in values), **scales)
    (found,) = made.run(list(values))
    as_eager = getattr(torch, op)(*values, **scales)
    wanted = (as_eager.double() - exact).norm()
    assert (found.double() - exact).norm() <= 1.01 * wanted + 1e-6 * exact.norm()
    partly = name in ("bias", "a row", "expanded") and scales.get("beta", 1) == 0.5
    assert functions.calls.count("Matmul") == (0 if partly else 1)  # the bias is not scaled


def test_what_is_not_described_is_pytorchs():
    def of(*shapes, dtype="float32", strides=None):
        layouts = [TensorLayout(dtype, s, desc(*s).strides) for s in shapes]
        if strides is not None:
            layouts[-1] = TensorLayout(dtype, shapes[-1], strides)
        return described(layouts, 1.0, 1.0)

    assert of((8, 24), (8, 16), (16, 24)) is not None
    assert of((8, 24), (8, 16), (16, 24), dtype="float64") is None
    assert of((8, 24), (8, 16), (16, 24), strides=(48, 2)) is None
    assert of((8, 1), (1,), (8, 16), (16, 1)) is None
    assert of((8, 24), (24,), (8, 1), (1, 24)) is None
    assert of((8, 24), (8, 1), (8, 16), (16, 24)) is None  # a column is added


def test_rows_are_columns_of_the_transposed():
    layouts = [TensorLayout("float32", s, desc(*s).strides) for s in ((8, 24), (8, 16), (16, 24))]
    found = described(layouts, 1.0, 1.0)
    assert (found.a, found.b, found.d) == (Matrix(24, 16, 24), Matrix(16, 8, 16), Matrix(24, 8, 24))
    assert found.transposed == (False, False)
    assert found.roles == (2, 1, 0, 0)


def linear():
    """A product with a bias between two kernels."""
    x, w, bias = matrix(128, 128), matrix(128, 128), matrix(128)
    before = call("t", "tanh.default", Ref("x", x), out=x)
    product = call("a", "addmm.default", Ref("b", bias), Ref("t", x), Ref("w", w), out=x)
    after = call("c", "tanh.default", Ref("a", x), out=x)
    return segment(before, product, after, inputs={"x": x, "w": w, "b": bias})


def exactly(x, w, bias):
    return torch.addmm(bias, x.tanh(), w).tanh()


def test_values_between_steps_share_one_piece_of_memory():
    functions = Functions(workspace=4096)
    _, steps, made = built(linear(), functions)
    kinds = [kind for kind, _ in steps.steps if kind != "free"]  # which is of inputs here
    assert kinds == ["launch", "product", "empty", "launch"]
    _, ((size,), *_), parts = steps.native_arena()
    assert size == 2 * 128 * 128 * 4 + 4096
    assert [offset % 512 for _, offset in parts] == [0, 0, 0]
    w, bias = on_aligned(torch.randn(128, 128) / 12), on_aligned(torch.randn(128))
    for _ in range(3):
        x = on_aligned(torch.randn(128, 128))
        (found,) = made.run([x, w, bias])
        torch.testing.assert_close(found, exactly(x, w, bias))
        bias = on_aligned(torch.randn(128))  # the next is elsewhere
    assert functions.calls.count("Matmul") == 3


def test_one_piece_that_takes_more_than_pieces_apart_is_not_made():
    def live(name, size, first, last):
        return lifetime(name, size << 20, first, last)

    found = plan_arena([live("0", 4, 0, 1), live("1", 4, 1, 2), live("2", 4, 2, 3)], [])
    assert found.bytes == 8 << 20
    assert plan_arena([live("0", 4, 0, 1)], [live("1", 4, 2, 3)]) is None  # never both at once
    assert plan_arena([live("0", 4, 0, 2)], [live("1", 4, 2, 3)]) is not None
    assert plan_arena([live("0", 4, 0, 1)], [live("1", 4, 2, 3)], 200 << 20) is not None
    assert plan_arena([], []) is None


def test_a_run_that_begins_within_another_has_addresses_of_its_own():
    """As with threads: the driver's stand-in runs the program again at its second launch."""
    functions = Functions()
    driver, _, made = built(linear(), functions)
    w, bias, other = (on_aligned(torch.randn(*n) / 12) for n in ((128, 128), (128,), (128,)))
    x, y = (on_aligned(torch.randn(128, 128)) for _ in range(2))
    launch, found = driver.launch, []

    def again(*args):
        code = launch(*args)
        if len(driver.launches) == 1:
            found.extend(made.run([y, w, other]))
        return code

    driver.answer = again
    found += made.run([x, w, bias])
    torch.testing.assert_close(found, [exactly(y, w, other), exactly(x, w, bias)])
    assert functions.calls.count("Matmul") == 1  # the descriptor's bias is the first run's


def test_memory_that_is_less_aligned_is_pytorchs_to_multiply():
    functions = Functions()
    _, _, made = built(linear(), functions)
    x, w, bias = (
        torch.randn(128, 128),
        aligned((128, 136), (136, 1), torch.float32),
        torch.randn(128),
    )
    w = w.view(-1)[16 : 16 + 128 * 128].view(128, 128).normal_() / 12
    w = on_aligned(torch.cat((torch.zeros(16), w.reshape(-1))))[16:].view(128, 128)
    (found,) = made.run([x, w, bias])
    torch.testing.assert_close(found, exactly(x, w, bias))
    assert functions.calls.count("Matmul") == 0


@pytest.mark.parametrize(("start", "served"), [(0, True), (1, False), (64, True)])
def test_windows_count_from_where_they_begin(start, served):
    """The right factor is columns of another tensor's, which begins at a multiple of 256 bytes."""
    functions, x, whole = Functions(), matrix(128, 128), matrix(128, 200)
    part = matrix(128, 128, strides=(200, 1))
    cut = call("s", "slice.Tensor", Ref("w", whole), 1, start, start + 128, out=part)
    product = call("a", "mm.default", Ref("x", x), Ref("s", part), out=x)
    _, _, made = built(segment(cut, product, inputs={"x": x, "w": whole}), functions)
    x, w = on_aligned(torch.randn(128, 128)), on_aligned(torch.randn(128, 200))
    (found,) = made.run([x, w])
    torch.testing.assert_close(found, x @ w[:, start : start + 128])
    assert functions.calls.count("Matmul") == served


def test_what_the_library_fails_at_is_pytorchs():
    functions = Functions(refuse="Matmul")
    _, _, made = built(linear(), functions)
    given = [
        on_aligned(t) for t in (torch.randn(128, 128), torch.randn(128, 128) / 12, torch.randn(128))
    ]
    (found,) = made.run(list(given))
    torch.testing.assert_close(found, exactly(*given))
    assert functions.calls.count("Matmul") == 1


def test_a_library_without_an_algorithm_leaves_products_to_pytorch():
    _, steps, _ = built(linear(), Functions(refuse="MatmulAlgoGetHeuristic"))
    (product,) = (step for step in steps.products.values())
    assert product.planned is None


def test_descriptors_live_as_long_as_their_programs():
    functions = Functions()
    _, steps, made = built(linear(), functions)
    assert len(functions.made) == 1 + 5  # the handle, a product and its matrices
    del steps, made
    gc.collect()
    assert len(functions.made) == 1


def test_float32_is_rounded_only_where_it_may_be():
    for tf32, compute in ((False, 68), (True, 77)):
        functions = Functions()
        program = built(linear(), functions, tf32)
        told = [each["told"] for each in functions.made.values()]
        assert (compute, 0) in told
        del program


def test_a_library_that_is_not_loaded_is_none():
    def missing():
        raise OSError

    assert cublas.open_library(missing) is None
    assert cublas.open_library(object) is None
