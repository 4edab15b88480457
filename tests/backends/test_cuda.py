"""The ``cuda`` backend as far as it goes without a GPU; tests/test_gpu.py runs it on one."""

import pytest

from dovetail import registry
from dovetail.backend import Blob
from dovetail.backends.cuda.backend import CudaBackend
from dovetail.backends.cuda.program import BlockLaunch, CudaProgram
from dovetail.backends.cuda.stored import is_stored, store, stored
from dovetail.backends.support import refusal
from dovetail.codegen.triton.compile import Cubin
from dovetail.errors import InvalidArtifact
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.target import TARGETS
from dovetail.lower.values import LibraryCall
from dovetail.schedule.plan import Unschedulable

GPU = TARGETS["sm_90"]


def desc(*shape, device="cuda:0", dtype="float32"):
    strides = [1] * len(shape)
    for n in range(len(shape) - 2, -1, -1):
        strides[n] = strides[n + 1] * shape[n + 1]
    return TensorDesc(dtype, shape, tuple(strides), device)


def call(name, op, *args, out):
    return OpCall(name, f"aten.{op}", args, {}, out)


def segment(*calls, inputs):
    given = tuple(Input(name, d) for name, d in inputs.items())
    last = calls[-1]
    return Segment("test", given, calls, (Ref(last.name, last.output),))


def perceptron(device="cuda:0"):
    """Two products, each with the same activation behind it."""
    x, w = (Ref(name, desc(128, 128, device=device)) for name in ("x", "w"))
    first = call("a", "mm.default", x, w, out=x.desc)
    second = call("b", "tanh.default", Ref("a", x.desc), out=x.desc)
    third = call("c", "mm.default", Ref("b", x.desc), w, out=x.desc)
    fourth = call("d", "tanh.default", Ref("c", x.desc), out=x.desc)
    return segment(first, second, third, fourth, inputs={"x": x.desc, "w": w.desc})


def test_products_are_calls_between_launches():
    program = CudaProgram(perceptron(), GPU)
    assert [type(step) for step in program.steps] == [
        LibraryCall,
        BlockLaunch,
        LibraryCall,
        BlockLaunch,
    ]


def test_small_products_are_kernels_with_what_is_done_to_their_sums():
    x = Ref("x", desc(64, 32))
    w, bias = Ref("w", desc(32, 32)), Ref("bias", desc(32))
    product = call("a", "addmm.default", bias, x, w, out=x.desc)
    after = call("b", "relu.default", Ref("a", x.desc), out=x.desc)
    given = {"x": x.desc, "w": w.desc, "bias": bias.desc}
    (step,) = CudaProgram(segment(product, after, inputs=given), GPU).steps
    assert isinstance(step, BlockLaunch)


def test_kernels_that_are_alike_are_compiled_once():
    program = CudaProgram(perceptron(), GPU)
    assert len(program.kernels) == 1
    assert {s.name for s in program.steps if isinstance(s, BlockLaunch)} == set(program.kernels)


def test_kernels_that_differ_in_the_sign_of_zero_have_code_of_their_own():
    """In one segment: sums of 0.0 and of -0.0, apart by a product."""
    x, w = (Ref(name, desc(128, 128)) for name in ("x", "w"))
    first = call("a", "add.Tensor", x, 0.0, out=x.desc)
    between = call("b", "mm.default", Ref("a", x.desc), w, out=x.desc)
    last = call("c", "add.Tensor", Ref("b", x.desc), -0.0, out=x.desc)
    program = CudaProgram(segment(first, between, last, inputs={"x": x.desc, "w": w.desc}), GPU)
    assert len(program.kernels) == 2


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_a_segment_is_on_one_gpu(other):
    y = Ref("y", desc(8, device=other))
    x = Ref("x", desc(8))
    calls = [call(f"v{r.name}", "exp.default", r, out=r.desc) for r in (x, y)]
    with pytest.raises(Unschedulable, match=f"tensors on .*{other}"):
        CudaProgram(segment(*calls, inputs={"x": x.desc, "y": y.desc}), GPU)


def taken(call):
    return refusal(call, GPU, "cuda")


def test_what_is_taken():
    x, far = Ref("x", desc(8, 8)), Ref("y", desc(8, 8, device="cpu"))
    assert taken(call("a", "exp.default", x, out=x.desc)) == ""
    assert taken(call("a", "mm.default", x, x, out=x.desc)) == ""  # PyTorch's, between launches
    assert taken(call("a", "exp.default", far, out=far.desc)) == "a tensor on cpu"
    assert taken(call("a", "mul.Tensor", x, far, out=x.desc)) == "a tensor on cpu"


def test_code_is_stored_beside_its_segment():
    code = {"one": Cubin("fused", b"\x7fELF1", 4, 64), "two": Cubin("other", b"", 8, 0)}
    data = store(perceptron(), code)
    assert is_stored(data)
    assert stored(data) == (perceptron(), code)


@pytest.mark.parametrize("cut", [3, 7, 60, -1])
def test_a_part_of_it_is_refused(cut):
    data = store(perceptron(), {"one": Cubin("fused", b"\x7fELF1", 4, 64)})
    with pytest.raises(InvalidArtifact):
        stored(data[:cut])


def test_without_a_gpu_it_says_why_it_is_not_available():
    answer = registry.get_backend("cuda").available()
    assert answer or "Triton" in answer.reason or "CUDA" in answer.reason


def test_code_of_other_kernels_is_refused(monkeypatch):
    monkeypatch.setattr("dovetail.backends.cuda.backend._target_for", lambda _: GPU)
    given = perceptron()
    blob = Blob(store(given, {"0": Cubin("a", b"", 1, 0), "1": Cubin("b", b"", 1, 0)}))
    with pytest.raises(InvalidArtifact, match="other kernels"):
        CudaBackend().load(blob)
