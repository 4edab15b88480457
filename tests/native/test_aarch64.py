"""Generated code on AArch64: made here, run by the C runtime under emulation."""

import dataclasses
import random
import struct
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from dovetail.artifact.save import kernel_sections
from dovetail.backends.cpu.code import scheduled
from dovetail.cli import main
from dovetail.cli.inspect import describe
from dovetail.codegen.llvm.module import generate
from dovetail.errors import CannotSave, InterpretedKernels
from dovetail.file.kernel_encode import encode_kernel
from dovetail.file.objects import functions
from dovetail.file.processors import AARCH64
from dovetail.ir.kernel_call import call_inputs, call_outputs
from dovetail.ir.target import TARGETS
from dovetail.runtime.loaded import TRUST, open_native
from dovetail.testing.kernel_reference import run_kernel
from tests.codegen import random_graphs
from tests.codegen.kernels import PROGRAMS, kernels_of
from tests.codegen.test_accuracy import UNARY, whole_range
from tests.native import aarch64
from tests.native.random_kernels import RandomKernel

pytest.importorskip("llvmlite", reason="code is generated with llvmlite")
pytestmark = [pytest.mark.arm, pytest.mark.xdist_group("aarch64")]
ARM = ("armv8-a",)
ARMV8 = TARGETS["armv8-a"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return aarch64.build(tmp_path_factory.mktemp("aarch64"))


class Calls(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)


def artifact_of(fn, *args, **options):
    return dovetail.export(Calls(fn), args, backend="cpu", **options)


def on_arm(program, folder, artifact, *args, like=None):
    """The results of a file with code for AArch64 alone."""
    artifact.save(folder / "model.dvt", without_torch=True, targets=ARM)
    state, outputs = aarch64.run(program, folder, args)
    assert state == 1, state
    known = artifact(*args) if like is None else like
    known = (known,) if torch.is_tensor(known) else known
    return [aarch64.as_tensor(out, k) for out, k in zip(outputs, known, strict=True)]


# ---- making the code -----------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_code_is_made_on_any_machine(name):
    fn, args = PROGRAMS[name]
    kernels = {f"k{n}": kernel for n, kernel in enumerate(kernels_of(fn, *args))}
    bodies = {name: encode_kernel(kernel) for name, kernel in kernels.items()}
    code, _ = kernel_sections(bodies, (), (AARCH64,))
    section = b"".join(code.pieces)
    assert set(functions(section)[AARCH64]) == set(kernels)
    (at,) = struct.unpack_from("<Q", section, 16)
    assert section[at : at + 4] == b"\x7fELF"
    assert struct.unpack_from("<H", section, at + 18) == (183,)


def test_a_file_has_code_for_the_targets_it_is_given(tmp_path):
    artifact = artifact_of(lambda x: x.sin() + 1, torch.randn(9))
    for targets in ((), ARM, ("x86-64-v3", *ARM), ("x86-64-v4",)):
        artifact.save(tmp_path / "m.dvt", targets=targets)
        (kernel,) = describe(str(tmp_path / "m.dvt"))["generated"]
        assert tuple(kernel["code"]) == targets
        assert kernel["instructions"] > 1
    with pytest.raises(
        CannotSave, match=r"'mips': the targets are x86-64-v3, x86-64-v4, x86-64-v4-"
    ):
        artifact.save(tmp_path / "m.dvt", targets=("mips",))


def test_targets_at_the_command_line(tmp_path):
    made = tmp_path / "m.dvt"
    command = ["compile", "tests.artifact.factories:mlp", "--backend", "cpu", "-q", "-o", str(made)]
    assert main([*command, "--target", "armv8-a", "--target", "x86-64-v3"]) == 0
    for kernel in describe(str(made))["generated"]:
        assert set(kernel["code"]) == {"armv8-a", "x86-64-v3"}
    assert main([*command, "--target", "pdp-11"]) == 2


def test_code_of_another_processor_is_passed_over(tmp_path):
    """Here such a file runs from its kernel IR, or from code that is made again."""
    x = torch.randn(5, 7)
    artifact = artifact_of(lambda x: x.softmax(-1), x)
    for targets, state in ((("x86-64-v3", *ARM), 1), (ARM, -2)):
        artifact.save(tmp_path / "m.dvt", targets=targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InterpretedKernels)
            native = open_native((tmp_path / "m.dvt").read_bytes(), flags=TRUST)
        assert native.code() == state
        torch.testing.assert_close(torch.from_dlpack(native(x)[0]), x.softmax(-1))
    assert dovetail.load(tmp_path / "m.dvt", trusted_keys=[]).native.code() == 1


# ---- running it ----------------------------------------------------------------------------


@aarch64.needs_emulator
@pytest.mark.parametrize("part", range(5))
def test_functions_give_the_bits_of_x86(program, tmp_path, part):
    """Their error is measured there; NaNs may have another sign."""
    names, x = list(UNARY)[part::5], whole_range(100003)

    def every(x, y):
        return tuple(UNARY[name](v) for name in names for v in (x, y))

    artifact = artifact_of(every, x, x.double())
    artifact.save(tmp_path / "x86.dvt", without_torch=True, targets=("x86-64-v3",))
    here = open_native((tmp_path / "x86.dvt").read_bytes(), flags=TRUST)
    if here.code() != 1:
        pytest.skip("this machine is no x86-64-v3, whose code this is compared with")
    expected = list(map(torch.from_dlpack, here(x, x.double())))
    got = on_arm(program, tmp_path, artifact, x, x.double(), like=expected)
    for n, (a, b) in enumerate(zip(got, expected, strict=True)):
        bits = torch.int32 if a.dtype == torch.float32 else torch.int64
        number = ~b.isnan()
        assert torch.equal(number, ~a.isnan()), names[n // 2]
        assert torch.equal(a.view(bits)[number], b.view(bits)[number]), names[n // 2]


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "chain": (
        lambda x, y: ((x * y + 1).clamp(-2, 2) / (y.abs() + 0.5) - x).relu().sqrt(),
        (data(33, 65), data(65)),
    ),
    "softmax": (lambda x: x.softmax(-1), (data(19, 77),)),
    "log_softmax": (lambda x: x.log_softmax(0), (data(19, 77),)),
    "layer_norm": (lambda x: F.layer_norm(x, (200,)), (data(11, 200),)),
    "group_norm": (lambda x: F.silu(F.group_norm(x, 4)), (data(3, 8, 5, 7),)),
    "sum": (lambda x: x.sum(), (data(301, 67),)),
    "rows": (lambda x: (x.sum(1), x.amax(1), x.var(1)), (data(40, 131),)),
    "columns": (lambda x: (x.sum(0), x.amin(0), x.prod(0)), (data(40, 131),)),
    "scans": (lambda x: (x.cumsum(1), x.cumprod(0), x.cumsum(0)), (data(21, 45),)),
    "turned": (lambda x: (x.t().contiguous(), x.double().t() + x.view(45, 23)), (data(23, 45),)),
    "arg": (lambda x: (x.argmax(1), x.argmin(0)), (data(23, 45),)),
    "gather": (lambda x, i: x[i] * 2, (data(9, 21), torch.tensor([3, 0, 8, -1]))),
    "embedding": (
        lambda w, i: F.embedding(i, w).tanh(),
        (data(13, 10), torch.arange(20).view(4, 5) % 13),
    ),
    "integers": (
        lambda x: ((x // 3) * 2 + x % 7, x.sum(0), x.to(torch.int8), x.float() / 3),
        (torch.arange(323).view(17, 19) % 199 - 99,),
    ),
    "bytes": (
        lambda x: (x * 3 + 7, x.float().mean(), x > 100),
        (torch.arange(150).view(50, 3).to(torch.uint8),),
    ),
    "bool": (lambda x: (x.any(0), x.all(1), ~x), (data(31, 18) > -1.5,)),
    "double": (lambda x: (x.exp().sum(1), x.log().nan_to_num(), x * 2), (data(8, 9).double(),)),
    "transposed": (lambda x: x.t().contiguous() + x.t().sum(), (data(37, 22),)),
    "strided": (lambda x: x[::3, 1::2].flip(1) * 2, (data(40, 41),)),
    "cat": (lambda x, y: torch.cat([x, -y], 1), (data(3, 5), data(3, 9))),
    "pad": (lambda x: F.pad(x, (3, 2)) * 2, (data(16, 80),)),
    "whole": (lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.sign()), (data(77) * 9,)),
    "scalar": (lambda x: x.exp() + 1, (torch.tensor(0.5),)),
    "threads": (lambda x: (x * 2 + 1).relu(), (data(700, 1024),)),
    "empty": (lambda x: (x * 2, x.sum()), (torch.randn(0, 3),)),
}


@aarch64.needs_emulator
@pytest.mark.parametrize("name", CASES)
def test_programs_against_eager(program, tmp_path, name):
    fn, args = CASES[name]
    doubles = (a.double() if a.is_floating_point() else a for a in args)
    expected, exact = (v if isinstance(v, tuple) else (v,) for v in (fn(*args), fn(*doubles)))
    got = on_arm(program, tmp_path, artifact_of(fn, *args), *args, like=expected)
    for mine, eager, right in zip(got, expected, exact, strict=True):
        assert mine.shape == eager.shape
        if not eager.is_floating_point():
            assert torch.equal(mine, eager)
        elif eager.numel():
            few = 4 * torch.finfo(eager.dtype).eps * right.abs().max()
            error, theirs = ((v.double() - right).abs().max() for v in (mine, eager))
            assert error <= 2 * theirs + few, (error, theirs)


@aarch64.needs_emulator
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(program, tmp_path, dtype):
    """Conversions are exact on every processor: the bits are those of eager."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x, wide = bits.view(dtype), whole_range(100003)
    (up,) = on_arm(program, tmp_path, artifact_of(torch.Tensor.float, x), x)
    torch.testing.assert_close(up, x.float(), rtol=0, atol=0, equal_nan=True)
    (down,) = on_arm(program, tmp_path, artifact_of(lambda w: w.to(dtype), wide), wide)
    torch.testing.assert_close(down, wide.to(dtype), rtol=0, atol=0, equal_nan=True)
    y = torch.randn(9, 35).to(dtype)
    (norm,) = on_arm(program, tmp_path, artifact_of(lambda y: F.layer_norm(y, (35,)), y), y)
    torch.testing.assert_close(norm, F.layer_norm(y.double(), (35,)).to(dtype))


@aarch64.needs_emulator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8])
def test_tails(program, tmp_path, dtype):
    """Nothing beyond a row's end is read into it or written over."""
    shapes = {"x": {1: torch.export.Dim.DYNAMIC}}

    def fn(x):
        return x * 2 + 1, x.amax(1)

    class Model(nn.Module):
        def forward(self, x):
            return fn(x)

    x = (torch.randn(5, 9) * 9).to(dtype)
    artifact = dovetail.export(Model(), (x,), backend="cpu", dynamic_shapes=shapes)
    artifact.save(tmp_path / "m.dvt", without_torch=True, targets=ARM)
    data = (tmp_path / "m.dvt").read_bytes()
    cases = {n: (torch.randn(5, n) * 9).to(dtype) for n in range(2, 20)}
    folders = [aarch64.write(tmp_path / str(n), data, x) for n, x in cases.items()]
    assert aarch64.run_all(program, folders) == [1] * len(folders)
    for folder, x in zip(folders, cases.values(), strict=True):
        expected = fn(x)
        outputs = zip(aarch64.taken(folder), expected, strict=True)
        got = tuple(aarch64.as_tensor(out, like) for out, like in outputs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@aarch64.needs_emulator
def test_indices_out_of_range_are_found(program, tmp_path):
    x, i = torch.randn(9, 4), torch.tensor([3, 0, 8])
    artifact = artifact_of(lambda x, i: x[i] * 2, x, i)
    artifact.save(tmp_path / "model.dvt", without_torch=True, targets=ARM)
    assert aarch64.run(program, tmp_path, (x, i))[0] == 1
    message, _ = aarch64.run(program, tmp_path, (x, torch.tensor([3, 0, 9])))
    assert "index" in message


@aarch64.needs_emulator
def test_code_for_x86_alone_is_interpreted(program, tmp_path):
    x = torch.randn(6, 33)
    artifact = artifact_of(lambda x: x.softmax(-1), x)
    artifact.save(tmp_path / "model.dvt", without_torch=True, targets=("x86-64-v3",))
    state, (out,) = aarch64.run(program, tmp_path, (x,))
    assert state == -2
    torch.testing.assert_close(aarch64.as_tensor(out, x), x.softmax(-1))


@aarch64.needs_emulator
def test_random_kernels(program, tmp_path):
    """Kernels whose results do not depend on rounding, against the oracle."""
    cases = [RandomKernel(seed) for seed in range(40)]
    folders = []
    for made in cases:
        kernel, lengths = made.kernel, {n: len(a) for n, a in made.arrays.items()}
        code = generate(scheduled({kernel.name: kernel}, ARMV8), ARMV8)
        data = aarch64.kernel_file(kernel, lengths, code, AARCH64)
        given = [np.zeros(made.sizes[name], dtype=bool) for name in sorted(kernel.symbols())]
        given += [made.arrays[b.name] for b in call_inputs(kernel)]
        folders.append(aarch64.write(tmp_path / kernel.name, data, *given))
    assert aarch64.run_all(program, folders) == [1] * len(folders)
    for made, folder in zip(cases, folders, strict=True):
        run_kernel(made.kernel, made.arrays, made.sizes)
        outputs = aarch64.taken(folder)
        for b, (_, raw) in zip(call_outputs(made.kernel), outputs, strict=True):
            expected = made.arrays[b.name]
            got = np.frombuffer(raw, expected.dtype)
            np.testing.assert_array_equal(got, expected, err_msg=f"{folder.name} {b.name}")


@aarch64.needs_emulator
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(program, tmp_path, seed):
    made = random_graphs.Program(seed)
    inputs = made.inputs()
    try:
        artifact = artifact_of(made, *made.inputs())
        got = on_arm(program, tmp_path, artifact, *inputs, like=made(*made.inputs()))
    except CannotSave as reason:
        pytest.skip(f"PyTorch is needed: {reason}")
    torch.testing.assert_close(tuple(got), made(*inputs), rtol=1e-4, atol=1e-5)


# ---- hostile objects -----------------------------------------------------------------------


@aarch64.needs_emulator
def test_damaged_objects_are_refused(program, tmp_path):
    """Tables that are cut or changed end in an error, or do no harm; never in a crash."""
    x, rng = torch.randn(4, 5), random.Random(0)
    kernels = {f"k{n}": kernel for n, kernel in enumerate(kernels_of(torch.erf, x))}
    ((name, kernel),) = kernels.items()
    kernel = dataclasses.replace(kernel, name=name)
    good = generate(scheduled(kernels, ARMV8), ARMV8)
    lengths = {b.name: x.numel() for b in kernel.buffers}
    tables = struct.unpack_from("<Q", good, 40)[0] - 200  # relocations, symbols, then sections
    folders = []
    for n in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            at = rng.choice([rng.randrange(64), rng.randrange(tables, len(data))])
            data[at] = rng.randrange(256)
        cut = bytes(data) if n % 3 else good[: rng.randrange(len(good))]
        made = aarch64.kernel_file(kernel, lengths, cut, AARCH64)
        folders.append(aarch64.write(tmp_path / str(n), made))
    states = aarch64.run_all(program, folders)
    assert any("code section" in str(state) for state in states)
