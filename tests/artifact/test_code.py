"""Generated kernels in a file: as code where that is trusted, from kernel IR where it is not."""

import copy
import json
import os
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from dovetail import _native, errors
from dovetail.cli import main
from dovetail.cli.inspect import describe
from dovetail.file import container
from dovetail.file.kernel_decode import decode_kernels
from tests.architectures import judged
from tests.artifact.cases import artifact_of, cases
from tests.targets import plain_target

pytest.importorskip("llvmlite", reason="code is generated with llvmlite")
pytestmark = pytest.mark.xdist_group("artifact")
KEY = bytes(range(32))
tree_leaves = torch.utils._pytree.tree_leaves


class Fused(nn.Module):
    """No operator of PyTorch's is left in it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(48)

    def forward(self, x):
        return F.gelu(self.norm(x)).softmax(-1), x.sum(0)


class Gathers(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 12)

    def forward(self, ids):
        return self.table(ids).tanh()


def export(model, *args, **options):
    return dovetail.export(model.eval(), args, backend="cpu", **options)


@pytest.fixture(scope="module")
def fused():
    torch.manual_seed(3)
    x = torch.randn(9, 48)
    return export(Fused(), x), x


def load_quietly(path, **options):
    """A file opened without llvmlite's help: code, else kernel IR."""
    from dovetail.runtime.loaded import load

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return load(path, **options), [w.category for w in caught]


# ---- trust ---------------------------------------------------------------------------------


def test_unsigned_code_is_interpreted_with_one_warning(fused, tmp_path):
    artifact, x = fused
    artifact.save(tmp_path / "m.dvt")
    run, warned = load_quietly(tmp_path / "m.dvt", trusted_keys=[])
    assert run.native.code() == -2
    assert warned == [errors.InterpretedKernels]
    torch.testing.assert_close(run(x), artifact(x))


def test_signed_code_runs_for_who_trusts_the_key(fused, tmp_path):
    artifact, x = fused
    artifact.save(tmp_path / "m.dvt", key=KEY)
    run, warned = load_quietly(tmp_path / "m.dvt", trusted_keys=[_native.public_key(KEY)])
    assert run.native.code() == 1
    assert warned == []
    assert all(torch.equal(a, b) for a, b in zip(run(x), artifact(x), strict=True))
    stranger, warned = load_quietly(tmp_path / "m.dvt", trusted_keys=[])
    assert stranger.native.code() == -2
    assert warned == [errors.InterpretedKernels]


def damaged_code(path):
    """The file with all machine code replaced by bytes that trap, its digests made good."""
    data = path.read_bytes()
    with path.open("rb") as file:
        header = container.read_header(file)
    sections = []
    for entry in header.entries:
        body = bytearray(data[entry.offset : entry.offset + entry.size])
        if entry.kind == container.CODE:
            for n in range(struct.unpack_from("<I", body)[0]):
                _, _, at, _ = struct.unpack_from("<2I2Q", body, 8 + 24 * n)
                (table,) = struct.unpack_from("<Q", body, at + 40)
                (count,) = struct.unpack_from("<H", body, at + 60)
                for s in range(count):
                    row = struct.unpack_from("<2I4Q2I2Q", body, at + table + 64 * s)
                    if row[2] & 4:  # executable
                        body[at + row[4] : at + row[4] + row[5]] = b"\xcc" * row[5]
        sections.append(container.Section(entry.kind, [bytes(body)], entry.required))
    container.write_file(path, container.chunks(*container.lay_out(sections, header.features)))


def test_code_of_others_is_never_executed(fused, tmp_path):
    """Code that would kill the process does not, whether kernels are interpreted or compiled."""
    artifact, x = fused
    artifact.save(tmp_path / "m.dvt")
    damaged_code(tmp_path / "m.dvt")
    interpreted, _ = load_quietly(tmp_path / "m.dvt", trusted_keys=[])
    torch.testing.assert_close(interpreted(x), artifact(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = dovetail.load(tmp_path / "m.dvt", trusted_keys=[])
    assert compiled.native.code() == 1
    assert all(torch.equal(a, b) for a, b in zip(compiled(x), artifact(x), strict=True))


def test_gathers_of_others_are_compiled_too(tmp_path):
    """What could leave a buffer by its data is checked while it runs, where nobody vouches."""
    ids = torch.tensor([[0, 6, 3]])
    artifact = export(Gathers(), ids)
    artifact.save(tmp_path / "m.dvt", key=KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = dovetail.load(tmp_path / "m.dvt", trusted_keys=[])
    assert run.native.code() == 1
    assert torch.equal(run(ids), artifact(ids))
    trusted = dovetail.load(tmp_path / "m.dvt", trusted_keys=[_native.public_key(KEY)])
    assert torch.equal(trusted(ids), artifact(ids))
    for loaded in (run, trusted):
        with pytest.raises(IndexError):
            loaded(torch.tensor([[0, 9, 3]]))


def test_regenerated_kernels_cannot_leave_their_buffers(fused, tmp_path):
    """Kernel IR that reaches too far is refused before its code runs."""
    from dovetail.backends.cpu.regenerate import regenerate
    from dovetail.file.kernel_encode import encode_kernels
    from dovetail.ir.kernel import Axis, Index, Kernel, KernelBuffer, Load, Loop, Store
    from tests.artifact.files import file_bytes

    i = Index(0, (("i", 1),))
    kernel = Kernel(
        "far",
        (KernelBuffer("x", "float32"), KernelBuffer("y", "float32", "out")),
        (Axis("i", 4096),),
        (Loop((), (Load("a", "float32", "x", i), Store("y", i, "a"))),),
    )
    described = encode_kernels([kernel])
    text = "program @p\ninput %x: float32[4]\noutput %y: float32[4]\n"
    data = file_bytes(
        text + "kernel %y = far@1(%x)\nreturn %y\n",
        generated={"far@1": "far"},
        sections=[container.section(container.KERNEL_IR, described)],
    )
    native = _native.Artifact(data, 0, b"")
    code, _ = regenerate(described, False)
    native.use_code(code)
    assert native.code() == 1
    with pytest.raises(errors.InvalidArtifact, match="reaches outside"):
        native(np.ones(4, np.float32))


@pytest.mark.parametrize("name", ['a" { ret }', "a b", "", "ä", "a\n"])
def test_names_are_plain(name):
    from dovetail.file.kernel_codes import PLAIN_NAME

    assert not PLAIN_NAME.fullmatch(name)


# ---- what a file holds ---------------------------------------------------------------------


def test_inspect_shows_generated_kernels(fused, tmp_path, capsys):
    artifact, _ = fused
    artifact.save(tmp_path / "m.dvt")
    found = describe(str(tmp_path / "m.dvt"))
    called = {name.removesuffix("@1") for name in found["kernels"]}
    assert {kernel["name"] for kernel in found["generated"]} == called
    for kernel in found["generated"]:
        assert set(kernel["code"]) == {plain_target()}
        assert min(kernel["code"].values()) > 100
        assert kernel["instructions"] > 1
    assert main(["inspect", str(tmp_path / "m.dvt")]) == 0
    assert "kernel IR of" in capsys.readouterr().out


def test_the_same_kernel_is_stored_once(tmp_path):
    layers = [layer for _ in range(5) for layer in (nn.Linear(8, 8), nn.GELU())]
    export(nn.Sequential(*layers), torch.randn(3, 8)).save(tmp_path / "m.dvt")
    found = describe(str(tmp_path / "m.dvt"))
    assert [found["kernels"][f"{k['name']}@1"] for k in found["generated"]] == [5]


class Raised(nn.Module):
    def forward(self, x):
        return torch.linalg.matrix_exp(x) + 1


def test_products_are_built_in_on_request(tmp_path):
    plain = nn.Sequential(nn.Linear(8, 8), nn.GELU()).bfloat16()
    mlp = export(plain, torch.randn(3, 8, dtype=torch.bfloat16))
    mlp.save(tmp_path / "free.dvt", without_torch=True)
    assert describe(str(tmp_path / "free.dvt"))["host_ops"] == []
    both = nn.Sequential(nn.Conv3d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(32, 2))
    mixed = export(both.bfloat16(), torch.randn(2, 3, 4, 4, 4, dtype=torch.bfloat16))
    mixed.save(tmp_path / "mixed.dvt")  # the product is a kernel's on some processors
    assert "aten.convolution.default" in describe(str(tmp_path / "mixed.dvt"))["host_ops"]
    mixed.save(tmp_path / "none.dvt", without_torch=True)
    assert describe(str(tmp_path / "none.dvt"))["host_ops"] == []
    raised = export(Raised(), torch.randn(5, 5))
    with pytest.raises(errors.CannotSave, match=r"aten\.linalg_matrix_exp"):
        raised.save(tmp_path / "raised.dvt", without_torch=True)


def test_numbers_that_vary_are_arguments(tmp_path):
    class Scaled(nn.Module):
        def forward(self, x, n):
            return x * n + x.shape[0]

    shapes = ({0: torch.export.Dim.DYNAMIC}, torch.export.Dim.DYNAMIC)
    x = torch.randn(3, 4)
    export(Scaled(), x, 5, dynamic_shapes=shapes).save(tmp_path / "m.dvt")
    run = dovetail.load(tmp_path / "m.dvt")
    for n in (2, 7, 40):
        torch.testing.assert_close(run(x[:2], n), x[:2] * n + 2)
    with pytest.raises(errors.GuardFailed):
        run(x, "five")


def test_the_kernels_of_a_file_can_be_read(fused, tmp_path):
    artifact, _ = fused
    artifact.save(tmp_path / "m.dvt")
    native = _native.Artifact(str(tmp_path / "m.dvt"), 4)
    kernels = decode_kernels(native.section(container.KERNEL_IR))
    assert len({kernel.name for kernel in kernels}) == len(kernels) >= 1


# ---- other processes -----------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["torch"] = sys.modules["llvmlite"] = None
import numpy as np, dovetail
run = dovetail.load(sys.argv[1])
assert run.native.code() == 1, run.native.code()
results = run(np.load(sys.argv[2]))
np.savez(sys.argv[3], *results)
"""


@pytest.mark.e2e
def test_same_bits_without_torch_and_llvmlite(fused, tmp_path):
    artifact, x = fused
    artifact.save(tmp_path / "m.dvt", key=KEY, without_torch=True)
    (tmp_path / "trusted_keys").write_text(_native.public_key(KEY).hex())
    (tmp_path / "trusted_keys").chmod(0o600)
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(tmp_path / name) for name in ("m.dvt", "x.npy", "y.npz")]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, *files],
        env={**os.environ, "DOVETAIL_CONFIG": str(tmp_path)}, check=True, timeout=60,
    )  # fmt: skip
    made = np.load(tmp_path / "y.npz")
    for n, expected in enumerate(artifact(x)):
        assert made[f"arr_{n}"].tobytes() == expected.numpy().tobytes()


CHILD = """
import json, sys, torch, dovetail
from pathlib import Path
leaves = torch.utils._pytree.tree_leaves
found = {}
for file in sorted(Path(sys.argv[1]).glob("*.dvt")):
    run, problems = dovetail.load(file), []
    for args, kwargs, written, outputs in torch.load(file.with_suffix(".pt")):
        got = leaves(run(*args, **kwargs))
        for a, b in zip(got + leaves((args, kwargs)), outputs + written, strict=True):
            if not torch.is_tensor(b):
                same = a == b
            else:
                same = a.dtype == b.dtype and torch.equal(a, b)
            if not same:
                problems.append(f"{a} is not {b}")
    found[file.stem] = problems, run.native.code()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What a new process that trusts our key finds different, by model."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "trusted_keys").write_text(_native.public_key(KEY).hex())
    (folder / "trusted_keys").chmod(0o600)
    for name, case in cases().items():
        artifact = artifact_of(name, "cpu")
        artifact.save(folder / f"{name}.dvt", key=KEY)
        calls = []
        for args in [case.args, *case.others]:
            given, before = copy.deepcopy((args, case.kwargs)), (args, case.kwargs)
            outputs = artifact(*given[0], **given[1])
            calls.append((*before, tree_leaves(given), tree_leaves(outputs)))
        torch.save(calls, folder / f"{name}.pt")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(folder)],
        env={**os.environ, "DOVETAIL_CONFIG": str(folder)},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(cases()))
def test_same_bits_in_a_new_process(results, name):
    problems, code = results[name]
    assert problems == []
    assert code in (0, 1)  # 0: a model of views alone has no kernels


@pytest.mark.parametrize("name", sorted(cases()))
def test_interpreted_as_eager(name, tmp_path):
    """Each model from its kernel IR alone, whatever PyTorch is left in it."""
    case = cases()[name]
    artifact = dovetail.export(
        case.model, copy.deepcopy(case.args), case.kwargs,
        dynamic_shapes=case.dynamic, backend="cpu",
    )  # fmt: skip
    artifact.save(tmp_path / "m.dvt")
    run, _ = load_quietly(tmp_path / "m.dvt", trusted_keys=[])
    assert run.native.code() in (0, -2)
    given, expected = copy.deepcopy(case.args), copy.deepcopy(case.args)
    outputs = tree_leaves(run(*given, **case.kwargs))
    eager = tree_leaves(case.model(*expected, **case.kwargs))
    if name == "halves":  # rounded where PyTorch does, or less often
        exact = [case.model.exact(*expected).detach()]
        judged.check(outputs, eager, exact)
    else:
        torch.testing.assert_close(outputs, eager, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given, expected)
