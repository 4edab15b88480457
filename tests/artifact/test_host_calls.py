"""Host calls: through libtorch's C functions and through Python, equal to eager to the bit."""

import ctypes
import threading
import traceback

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail import errors
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program
from dovetail.runtime.host import HostOperators
from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes
from tests.artifact.host_files import HostFile

pytestmark = pytest.mark.xdist_group("artifact")


def rand(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def ints(*shape, high=4):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


LAST = torch.channels_last
# operator, arguments, keyword arguments; these go through C.
NATIVE = [
    ("aten.mm.default", (rand(3, 4), rand(4, 5)), {}),
    ("aten.mm.default", (rand(4, 3).t(), rand(5, 4).t()), {}),
    ("aten.mm.default", (ints(3, 4), ints(4, 5)), {}),
    ("aten.mm.default", (rand(0, 4), rand(4, 5)), {}),
    ("aten.mm.default", (rand(3, 4, dtype=torch.bfloat16), rand(4, 5, dtype=torch.bfloat16)), {}),
    ("aten.addmm.default", (rand(5), rand(3, 4), rand(4, 5)), {}),
    ("aten.addmm.default", (rand(3, 5), rand(3, 4), rand(4, 5)), {"beta": 2, "alpha": 0.5}),
    ("aten.bmm.default", (rand(2, 3, 4), rand(2, 4, 5)), {}),
    ("aten.baddbmm.default", (rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)), {"beta": 0.25}),
    ("aten.add.Tensor", (rand(3, 4), rand(4)), {"alpha": 3}),
    ("aten.sub.Tensor", (rand(3, 4), rand(3, 1)), {"alpha": 0.5}),
    ("aten.mul.Tensor", (ints(3, 4), rand(4)), {}),
    ("aten.convolution.default",
     (rand(1, 4, 8, 8), rand(6, 2, 3, 3), rand(6), [1, 2], [1, 1], [1, 1], False, [0, 0], 2), {}),
    ("aten.convolution.default",
     (rand(1, 4, 8, 8).to(memory_format=LAST), rand(4, 6, 3, 3), None, [2, 2], [0, 0], [1, 1],
      True, [1, 1], 1), {}),
    ("aten.convolution_backward.default",
     (rand(1, 6, 8, 8), rand(1, 4, 8, 8), rand(6, 4, 3, 3), [6], [1, 1], [1, 1], [1, 1], False,
      [0, 0], 1, [True, False, True]), {}),
    ("aten._softmax.default", (rand(3, 4), -1, False), {}),
    ("aten.sum.dim_IntList", (rand(3, 4), [1], True), {"dtype": torch.float64}),
    ("aten.sum.dim_IntList", (rand(3, 4), None), {}),
    ("aten.mean.dim", (rand(3, 4, 5), [0, 2]), {}),
    ("aten.cat.default", ([rand(3, 4), rand(2, 4), rand(0, 4)],), {}),
    ("aten.stack.default", ([rand(3), rand(3, seed=5)], 1), {}),
    ("aten.index.Tensor", (rand(4, 5), [None, ints(3)]), {}),
    ("aten.index_put.default", (rand(4, 5), [ints(3)], rand(5), True), {}),
    ("aten.embedding.default", (rand(4, 6), ints(2, 3)), {}),
    ("aten.topk.default", (rand(3, 8), 2), {"largest": False}),
    ("aten.sort.stable", (ints(6),), {"stable": True, "descending": True}),
    ("aten.max_pool2d_with_indices.default", (rand(1, 2, 8, 8), [2, 2]), {}),
    ("aten.max_pool2d_with_indices.default", (rand(1, 2, 8, 8), 2), {}),
    ("aten.avg_pool2d.default", (rand(1, 2, 8, 8), [3, 3], [2, 2], [1, 1], True, False, 5), {}),
    ("aten.native_layer_norm.default", (rand(3, 4), [4], rand(4), None, 1e-5), {}),
    ("aten._to_copy.default", (rand(1, 2, 3, 4),), {"dtype": torch.float16, "memory_format": LAST}),
    ("aten._to_copy.default", (rand(3),), {"dtype": torch.float8_e5m2}),
    ("aten.zeros.default", ([2, 3],),
     {"dtype": torch.int32, "device": torch.device("cpu"), "layout": torch.strided,
      "pin_memory": False}),
    ("aten.split.Tensor", (rand(6, 2), 2), {}),
    ("aten.split_with_sizes.default", (rand(6, 2), [1, 2, 3]), {}),
    ("aten.t.default", (rand(3, 4),), {}),
    ("aten.feature_dropout.default", (rand(3, 4), 0.5, False), {}),
    ("aten._native_batch_norm_legit_no_training.default",
     (rand(2, 3, 4, 4), rand(3), rand(3, seed=2), rand(3, seed=3), rand(3).abs(), 0.1, 1e-5), {}),
    ("aten.upsample_bilinear2d.vec", (rand(1, 2, 4, 4), None, False, [2.0, 1.5]), {}),
    ("aten._scaled_dot_product_flash_attention_for_cpu.default",
     (rand(1, 2, 4, 8), rand(1, 2, 4, 8), rand(1, 2, 4, 8)), {"is_causal": True, "scale": 0.3}),
    ("aten.linalg_lu_factor_ex.default", (rand(3, 3),), {}),
    ("aten.where.self", (rand(3, 4) > 0, rand(3, 4), rand(4)), {}),
    ("aten.bitwise_and.Tensor", (ints(3, 4), ints(4)), {}),
    ("aten.eq.Tensor", (ints(3, 4), ints(4)), {}),
    ("aten.cumsum.default", (rand(3, 4).double(), 1), {}),
    ("aten.sum.default", (rand(3, 4),), {}),
    ("aten.repeat.default", (rand(3), [2, 2]), {}),
    ("aten.nonzero_static.default", (ints(6),), {"size": 4}),
    ("aten.relu.default", (rand(0, 3),), {}),
    ("aten.relu.default", (rand(2, 3).sum(),), {}),
    ("aten.searchsorted.Tensor", (rand(6).sort()[0], rand(4)), {"right": True}),
]  # fmt: skip
# These the C interface cannot take: a Scalar, complex numbers, a broadcast that must be copied;
# or may not, since PyTorch does not free strings.
PYTHON = [
    ("aten.gelu.default", (rand(3, 4),), {"approximate": "tanh"}),
    ("aten.scatter_reduce.two", (rand(5), 0, ints(6), rand(6), "amax"), {"include_self": False}),
    ("aten.linalg_qr.default", (rand(4, 3),), {}),
    ("aten.expand.default", (rand(3, 1), [3, 4]), {}),
    ("aten.add.Tensor", (ints(3, 4), ints(4)), {"alpha": 2}),
    ("aten.add.Scalar", (ints(3, 4), 2), {}),
    ("aten.mul.Scalar", (rand(3, 4), 2.5), {}),
    ("aten.clamp.default", (rand(3, 4), -0.5), {}),
    ("aten.full.default", ([2, 3], 7), {"dtype": torch.int16}),
    ("aten.var.correction", (rand(3, 4), [1]), {"correction": 0}),
    ("aten.addmm.default", (ints(3, 5), ints(3, 4), ints(4, 5)), {}),
    ("aten.mm.default", (rand(3, 4).to(torch.complex64), rand(4, 5).to(torch.complex64)), {}),
    ("aten.view_as_complex.default", (rand(3, 2),), {}),
    ("aten._conj.default", (rand(3, 4).to(torch.complex64),), {}),
]


def name_of(case):
    return case[0].removeprefix("aten.") if isinstance(case, tuple) else ""


def same(got, expected):
    """Equal to the bit, NaN included, in the same layout."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    plain = expected.resolve_conj().resolve_neg()
    if got.numel() and got.element_size() * 8 not in (128,):
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        kind = width[got.element_size()]
        assert torch.equal(got.contiguous().view(kind), plain.contiguous().view(kind))


@pytest.mark.parametrize("kind", ["host", "output"])
@pytest.mark.parametrize(
    ("case", "goes_native"),
    [(case, True) for case in NATIVE] + [(case, False) for case in PYTHON],
    ids=name_of,
)
def test_both_ways_equal_eager(case, goes_native, kind):
    broadcast = case[0] == "aten.expand.default"
    if broadcast and kind == "output":
        pytest.skip("memory that exists cannot be a broadcast")
    file = HostFile(*case, kind=kind)
    native = file.open()
    expected = [t for t in file.eager() if t is not None]
    for turn in range(3):
        for got, value in zip(native(*file.tensors), expected, strict=True):
            same(got, value)
            if not broadcast:
                got.fill_(turn)  # a result is the caller's own
    assert native.host_counts() == ((3, 0) if goes_native else (0, 3))
    native.plan_host([None])
    for got, value in zip(native(*file.tensors), expected, strict=True):
        same(got, value)
    assert native.host_counts()[1] == (1 if goes_native else 4)


def test_inputs_at_new_addresses():
    file = HostFile("aten.mm.default", (rand(3, 4), rand(4, 5)), {})
    native = file.open()
    for seed in range(5):
        a, b = rand(3, 4, seed=seed), rand(4, 5, seed=seed)
        assert torch.equal(native(a, b)[0], a @ b)
    strided = rand(4, 3).t()
    assert torch.equal(native(strided, b)[0], strided.contiguous() @ b)
    assert native.host_counts() == (6, 0)


def test_results_pass_from_call_to_call():
    text = """\
program @p
symbol s0 = %x[0] in 1..64
input %x: float32[s0, 4]
input %w: float32[4, 4]
temporary %a: float32[s0, 4]
host %b: float32[s0, 4]
view %c: float32[4, s0] strides [1, 4] of %b
host %d: float32[4, s0]
host %e: float32[s0, 4]
output %f: float32[4, s0]
call %a = aten.mm.default [{"buffer": "x"}, {"buffer": "w"}] {}
call %b = aten.relu.default [{"buffer": "a"}] {}
call %d = aten.exp.default [{"buffer": "c"}] {}
call %e = aten.view.default [{"buffer": "b"}, [{"size": "s0"}, 4]] {}
copy %f = %d
return %e, %f
"""
    native = open_native(file_bytes(text))
    w = rand(4, 4)
    for size in (3, 7, 3, 1):
        x = rand(size, 4)
        kept, changed = native(x, w)
        expected = torch.relu(x @ w)
        assert torch.equal(kept, expected)
        assert torch.equal(changed, expected.t().exp())
    assert native.host_counts() == (16, 0)


def test_random_numbers_are_pytorchs():
    file = HostFile("aten.rand.default", ([5],), {})
    native = file.open()
    torch.manual_seed(3)
    expected = torch.rand(5), torch.rand(5)
    torch.manual_seed(3)
    assert torch.equal(native()[0], expected[0])
    assert torch.equal(native()[0], expected[1])
    assert native.host_counts() == (2, 0)


BEYOND = torch.tensor([1, 9, 0])


@pytest.mark.parametrize(
    ("case", "bad"),
    [
        (("aten.embedding.default", (rand(4, 6), ints(3)), {}), (rand(4, 6), BEYOND)),
        (("aten.index.Tensor", (rand(4, 6), [ints(3)]), {}), (rand(4, 6), BEYOND)),
        (("aten.linalg_cholesky.default", (torch.eye(3),), {}), (-torch.eye(3),)),
        (("aten.linalg_inv_ex.default", (torch.eye(3),), {"check_errors": True}),
         (torch.zeros(3, 3),)),
    ],
)  # fmt: skip
def test_errors_are_eagers(case, bad):
    file = HostFile(*case)
    native = file.open()
    native(*file.tensors)
    assert native.host_counts() == (1, 0)
    wrong = HostFile(*case)
    wrong.args = tuple(
        [bad[1]] if isinstance(a, list) else b for a, b in zip(case[1], bad, strict=True)
    )
    with pytest.raises(Exception) as expected:  # noqa: PT011
        wrong.eager()
    for _ in range(2):
        with pytest.raises(type(expected.value)) as got:
            native(*bad)
        assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]
    assert native.host_counts() == (1, 2)
    assert len(native(*file.tensors)) == len(file.program.outputs)


class _Raising(TorchDispatchMode):
    """What PyTorch's C functions cannot pass on: an exception of Python's."""

    def __init__(self, often):
        super().__init__()
        self.left = often

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        if func is torch.ops.aten.cumsum.default and self.left:
            self.left -= 1
            raise LookupError("on purpose")
        return func(*args, **(kwargs or {}))


def test_an_exception_below_the_c_functions(monkeypatch):
    through_python, raise_pending = HostOperators.call, ctypes.pythonapi.PyErr_Occurred

    def call(*args):
        raise_pending()
        return through_python(*args)

    monkeypatch.setattr(HostOperators, "call", call)
    file = HostFile("aten.cumsum.default", (rand(3, 4), 1), {})
    native = file.open()
    with _Raising(1):  # the second way is tried as if nothing had happened
        assert torch.equal(native(*file.tensors)[0], file.eager()[0])
    with _Raising(2), pytest.raises(LookupError, match="on purpose"):
        native(*file.tensors)
    assert torch.equal(native(*file.tensors)[0], file.eager()[0])


def tensors_of(value):
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, list | tuple):
        return [tensor for item in items for tensor in tensors_of(item)]
    return [items] if isinstance(items, torch.Tensor) else []


def test_an_exception_holds_no_memory_that_was_lent():
    """A debugger, or a log of local variables, would read what has been freed."""
    file = HostFile("aten.cumsum.default", (rand(3, 4), 1), {})
    native = file.open()

    def fail(mine):
        raise ValueError(mine)

    try:
        fail(1)
    except ValueError as outer:
        with _Raising(2), pytest.raises(LookupError) as got:
            native(*file.tensors)
        theirs = outer.__traceback__.tb_next.tb_frame.f_locals
    below = list(traceback.walk_tb(got.value.__traceback__.tb_next))
    assert theirs["mine"] == 1  # of what was being handled meanwhile, nothing is cleared
    assert len(below) > 1
    assert [t for frame, _ in below for t in tensors_of(frame.f_locals)] == []


def test_gradients_and_autocast_stay_out():
    file = HostFile("aten.mm.default", (rand(3, 4), rand(4, 5)), {})
    soft = HostFile("aten._softmax.default", (rand(3, 4), -1, False), {})
    natives = file.open(), soft.open()
    a, b = (t.clone().requires_grad_() for t in file.tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = natives[0](a.detach(), b.detach())[0]
        more = natives[1](*soft.tensors)[0]
        assert torch.is_autocast_enabled("cpu")
    assert made.dtype == more.dtype == torch.float32
    assert not made.requires_grad
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        assert torch.equal(natives[0](*file.tensors)[0], made)
    assert torch.equal(natives[0](*file.tensors)[0], made)


def test_many_threads():
    file = HostFile("aten.addmm.default", (rand(5), rand(3, 4), rand(4, 5)), {})
    native = file.open()
    problems = []

    def work(seed):
        for turn in range(100):
            bias, x, w = rand(5, seed=seed), rand(3, 4, seed=turn), rand(4, 5, seed=seed + turn)
            if not torch.equal(native(bias, x, w)[0], torch.addmm(bias, x, w)):
                problems.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert native.host_counts() == (800, 0)


def test_a_result_of_another_shape_is_refused():
    text = "program @p\ninput %x: float32[2, 3]\nhost %y: float32[3, 3]\n"
    text += 'call %y = aten.relu.default [{"buffer": "x"}] {}\nreturn %y\n'
    for kind in ("host", "output"):
        native = open_native(file_bytes(text.replace("host %y", f"{kind} %y")))
        with pytest.raises((errors.RunFailed, RuntimeError)):
            native(rand(2, 3))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("host %y", "constant %y"), "writes to"),
        (("return %y", "return %x"), "input buffer"),
        (("return %y", "return %y, %y"), "handed out twice"),
        (("host %y:", "temporary %t: float32[2, 3]\ntemporary %y:"), "a temporary buffer"),
    ],
)  # fmt: skip
def test_wrong_programs_are_refused(change, problem):
    text = "program @p\ninput %x: float32[2, 3]\nhost %y: float32[2, 3]\n"
    text += 'call %y = aten.relu.default [{"buffer": "x"}] {}\nreturn %y\n'
    verify_program(parse_program(text))
    with pytest.raises(errors.InvalidProgram, match=problem):
        verify_program(parse_program(text.replace(*change)))


def test_a_call_takes_over_no_memory():
    text = "program @p\ninput %x: float32[2]\ntemporary %a: float32[2]\n"
    text += "temporary %b: float32[2] of %a\nhost %y: float32[2]\nkernel %a = relu@1(%x)\n"
    text += 'call %b = aten.relu.default [{"buffer": "a"}] {}\n'
    text += 'call %y = aten.relu.default [{"buffer": "b"}] {}\nreturn %y\n'
    with pytest.raises(errors.InvalidProgram, match="cannot take over memory"):
        verify_program(parse_program(text))
    with pytest.raises(errors.InvalidArtifact, match="take over memory"):
        open_native(file_bytes(text))
