"""The ``cuda`` backend as far as it goes without a GPU; tests/test_gpu.py runs it on one."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dovetail import registry
from dovetail.backend import Blob
from dovetail.backends.cuda import backend
from dovetail.backends.cuda.backend import CudaBackend
from dovetail.backends.cuda.program import BlockLaunch, CudaProgram
from dovetail.backends.cuda.stored import StoredSegment, digest_of, is_stored, store, stored
from dovetail.backends.support import refusal
from dovetail.codegen.triton.compile import Cubin
from dovetail.errors import InvalidArtifact, UnsupportedArtifact
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import ScalarDesc
from dovetail.lower.values import LibraryCall
from dovetail.schedule.images import is_channels_last
from dovetail.schedule.layout import assign_layouts
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


def convolutions(dtype="bfloat16", channels=64, groups=1):
    """Three convolutions, an activation behind the second; weights that vary."""
    x = Ref("x", desc(32, channels, 56, 56, dtype=dtype))
    w = Ref("w", desc(channels, channels // groups, 3, 3, dtype=dtype))
    rest = (w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    first = call("a", "convolution.default", x, *rest, out=x.desc)
    second = call("b", "convolution.default", Ref("a", x.desc), *rest, out=x.desc)
    third = call("c", "relu.default", Ref("b", x.desc), out=x.desc)
    fourth = call("d", "convolution.default", Ref("c", x.desc), *rest, out=x.desc)
    return segment(first, second, third, fourth, inputs={"x": x.desc, "w": w.desc})


def copies(given, target=GPU):
    laid_out = assign_layouts(given, target)
    CudaProgram(laid_out, GPU)  # kernels take and give what was chosen
    return [call.args[0].name for call in laid_out.calls if call.op == "aten.clone.default"]


def test_convolutions_of_matrix_instructions_are_channels_last():
    """One copy of the image, one of the weights, and one of the result, which is promised."""
    assert copies(convolutions()) == ["x", "w", "d"]
    laid_out = assign_layouts(convolutions("float16"), GPU)
    products = [call for call in laid_out.calls if call.op == "aten.convolution.default"]
    assert all(is_channels_last(out) for call in products for out in call.outputs)


def test_other_convolutions_stay_as_they_are():
    assert copies(convolutions("float64")) == []
    plain = replace(GPU, tensor_cores=("bfloat16",))  # as where float32 may not be rounded
    assert copies(convolutions("float32"), plain) == []
    assert copies(convolutions("float32")) == ["x", "w", "d"]


def test_channels_by_themselves_are_channels_last_where_that_has_a_faster_kernel():
    assert copies(convolutions(groups=64)) == ["x", "d"]  # weights of one channel lie either way
    plain = replace(GPU, tensor_cores=())
    assert copies(convolutions("float32", groups=64), plain) == ["x", "d"]
    assert copies(convolutions("float64", groups=64)) == []


def test_float32_is_rounded_only_where_it_may_be(monkeypatch):
    monkeypatch.setattr(backend, "target_of", lambda _: GPU)
    conv = torch.backends.cudnn.conv
    monkeypatch.setattr(conv, "fp32_precision", "ieee")
    given = convolutions("float32")
    assert CudaBackend().lay_out(given, frozenset()) is given
    monkeypatch.setattr(conv, "fp32_precision", "tf32")
    assert CudaBackend().lay_out(given, frozenset()) is not given


def taken(call):
    return refusal(call, GPU, "cuda")


def test_what_is_taken():
    x, far = Ref("x", desc(8, 8)), Ref("y", desc(8, 8, device="cpu"))
    assert taken(call("a", "exp.default", x, out=x.desc)) == ""
    assert taken(call("a", "mm.default", x, x, out=x.desc)) == ""  # PyTorch's, between launches
    assert taken(call("a", "exp.default", far, out=far.desc)) == "a tensor on cpu"
    assert taken(call("a", "mul.Tensor", x, far, out=x.desc)) == "a tensor on cpu"


def attention(*uses):
    """Fused attention, whose results are no tensors alone, and what reads it."""
    q, state = desc(2, 4, 128, 64, dtype="bfloat16"), desc(device="cpu", dtype="uint64")
    size, found = ScalarDesc("int", 128), desc(2, 4, 128)
    made = (q, found, None, None, size, ScalarDesc("int"), state, state, None)
    attend = "_scaled_dot_product_flash_attention.default"
    first = call("a", attend, *(Ref(n, q) for n in "qkv"), 0.0, True, out=made)
    then = call("b", "exp.default", Ref("a", q, (0,)), out=q)
    outputs = (Ref("b", q), *(Ref("a", made[n], (n,)) for n in uses))
    return Segment("test", tuple(Input(n, q) for n in "qkv"), (first, then), outputs)


def test_fused_attention_runs_between_kernels():
    given = attention(1, 4)
    assert taken(given.calls[0]) == ""
    program = CudaProgram(given, GPU)
    assert [type(step) for step in program.steps] == [LibraryCall, BlockLaunch]
    assert program.outputs[2] == 128


def test_a_number_that_only_a_call_tells_is_left_to_pytorch():
    with pytest.raises(Unschedulable, match="number a"):
        CudaProgram(attention(5), GPU)


def held(target="sm_90", digests=None):
    """A stored segment whose code is none."""
    program = CudaProgram(perceptron(), GPU)
    code = {name: Cubin("fused", b"\x7fELF1", 4, 64) for name in program.kernels}
    return StoredSegment(perceptron(), target, code, digests or program.digests())


def test_code_is_stored_beside_its_segment():
    data = store(held())
    assert is_stored(data)
    assert stored(data) == held()


def test_a_part_of_it_is_refused():
    data = store(held())
    for cut in range(len(data)):
        with pytest.raises(InvalidArtifact):
            stored(data[:cut])
    with pytest.raises(InvalidArtifact, match="behind the code"):
        stored(data + b"x")


def test_damaged_tables_end_in_a_typed_error():
    """Every byte of the table changed, one after the other: an error of ours or another table."""
    data = store(held())
    length = int.from_bytes(data[4:8], "little")
    for place in range(8 + length):
        for value in (0, 0x22, 0x2D, 0x39, 0xFF):
            with contextlib.suppress(InvalidArtifact):
                stored(data[:place] + bytes([value]) + data[place + 1 :])


def test_without_a_gpu_it_says_why_it_is_not_available():
    answer = registry.get_backend("cuda").available()
    assert answer or "Triton" in answer.reason or "CUDA" in answer.reason


@pytest.fixture
def here(monkeypatch):
    """This machine as if it had an H200 and no Triton."""
    monkeypatch.setattr(backend, "_target_for", lambda _: GPU)
    monkeypatch.setattr("dovetail.codegen.triton.compile.missing", lambda: "no Triton")


def test_code_that_is_found_needs_no_triton(here):
    assert backend.program_of(store(held())).code == held().code


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"target": "sm_80"}, "is for sm_80, not sm_90"),
        ({"digests": {"0": "1"}}, "another dovetail"),
    ],
)
def test_code_of_other_kernels_or_gpus_is_not_run(here, other, problem):
    with pytest.raises(UnsupportedArtifact, match=f"{problem}.*no Triton"):
        CudaBackend().load(Blob(store(held(**other))))


def test_code_of_other_gpus_is_made_again_where_triton_is(here, monkeypatch):
    monkeypatch.setattr("dovetail.codegen.triton.compile.missing", lambda: "")
    made = Cubin("made", b"", 1, 0)
    monkeypatch.setattr("dovetail.backends.cuda.program.compile_kernel", lambda *_: made)
    code = backend.program_of(store(held(target="sm_80"))).code
    assert set(code.values()) == {made}


def test_a_digest_tells_kernels_and_schedules_apart():
    program = CudaProgram(perceptron(), GPU)
    ((kernel, schedule),) = program.kernels.values()
    same, other = (digest_of(kernel, s) for s in (schedule, replace(schedule, warps=1)))
    assert same != other
    assert program.digests() == {"0": same}


def test_the_version_of_triton_is_known_without_importing_it():
    program = "import sys; from dovetail.codegen.triton.compile import version; print(version()); "
    program += "assert 'triton' not in sys.modules"
    beside = str(Path(sys.prefix) / "triton")
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": beside}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(("triton 3", "no triton"))
