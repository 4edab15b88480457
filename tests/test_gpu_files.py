"""Files of models on a GPU: saved, loaded without Triton, run."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors, registry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BACKENDS = ("aten", "cuda") if registry.default_backend("cuda") == "cuda" else ("aten",)
both = pytest.mark.parametrize("backend", BACKENDS)
# A process that finds no Triton, and says so if somebody looks for it.
WITHOUT = """
import sys
sys.modules["triton"] = None
import warnings
import torch, dovetail
warnings.simplefilter("error", dovetail.errors.FallbackWarning)
run = dovetail.load(sys.argv[1], trust=True)
given, wanted = torch.load(sys.argv[2])
for x, y in zip(given, wanted):
    found = run(x)
    assert found.device == x.device, found.device
    torch.testing.assert_close(found, y, rtol=1e-5, atol=1e-5)
print([each.backend.name for each in run.linked.parts[-1].segments])
"""


class Block(nn.Module):
    """Kernels before, between and behind two products."""

    def __init__(self, device="cuda"):
        super().__init__()
        self.norm = nn.LayerNorm(256, device=device)
        self.up = nn.Linear(256, 1024, device=device)
        self.down = nn.Linear(1024, 256, device=device)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def saved(path, backend, model, *rows):
    """A model saved with dynamic rows; inputs, and what the artifact makes of them."""
    device = next(model.parameters()).device
    given = [torch.randn(n, 256, device=device) for n in rows]
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=4096)}}
    artifact = dovetail.export(model, (given[0],), dynamic_shapes=shapes, backend=backend)
    artifact.save(path)
    return given, [artifact(x) for x in given]


@both
def test_a_file_runs_in_a_process_without_triton(tmp_path, backend):
    pair = saved(tmp_path / "model.dvt", backend, Block().eval(), 64, 100, 3)
    torch.save(pair, tmp_path / "tensors")
    command = [
        sys.executable,
        "-c",
        WITHOUT,
        *map(str, (tmp_path / "model.dvt", tmp_path / "tensors")),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert backend in done.stdout


@both
def test_it_is_what_eager_computes(tmp_path, backend):
    model = Block().eval()
    (x, y), _ = saved(tmp_path / "model.dvt", backend, model, 32, 50)
    run = dovetail.load(tmp_path / "model.dvt", trust=True)
    exact = Block().double().eval()
    exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    for given in (x, y):
        wanted = exact(given.double())
        eagers = (model(given).double() - wanted).norm()
        assert (run(given).double() - wanted).norm() <= 2 * eagers + 1e-6 * wanted.norm()


@both
def test_constants_are_on_the_gpu_from_loading_on(tmp_path, backend):
    saved(tmp_path / "model.dvt", backend, Block().eval(), 32)
    run = dovetail.load(tmp_path / "model.dvt", trust=True)
    assert {t.device.type for t in run.interface.tensors.values()} == {"cuda"}
    x = torch.randn(32, 256, device="cuda")
    run(x)
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    run(x)
    made = torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before
    assert made < 4 * 256 * 1024 * 2  # values of the call, less than the weights


def test_it_needs_trust(tmp_path):
    saved(tmp_path / "model.dvt", "aten", Block().eval(), 32)
    with pytest.raises(errors.UntrustedArtifact):
        dovetail.load(tmp_path / "model.dvt")


@pytest.mark.skipif("cuda" not in BACKENDS, reason="needs Triton")
def test_code_of_another_dovetail_is_made_again_or_left_to_pytorch(tmp_path, monkeypatch):
    given, wanted = saved(tmp_path / "model.dvt", "cuda", Block().eval(), 32)
    monkeypatch.setattr("dovetail.backends.cuda.stored.CALLING", 0)
    again = dovetail.load(tmp_path / "model.dvt", trust=True)
    torch.testing.assert_close(again(given[0]), wanted[0], rtol=0, atol=0)
    monkeypatch.setattr("dovetail.codegen.triton.compile.missing", lambda: "no Triton")
    monkeypatch.setenv("DOVETAIL_STRICT", "0")
    with pytest.warns(errors.FallbackWarning, match="no Triton"):
        left = dovetail.load(tmp_path / "model.dvt", trust=True)
    torch.testing.assert_close(left(given[0]), wanted[0], rtol=1e-4, atol=1e-4)


class Both(nn.Module):
    """A part on the processor, a part on the GPU."""

    def forward(self, x, y):
        return (x.cos().cpu() + y).sin(), (y.tanh().cuda() * x).exp()


@both
def test_tensors_on_several_devices(tmp_path, backend):
    x, y = torch.randn(64, device="cuda"), torch.randn(64)
    artifact = dovetail.export(Both(), (x, y), backend=backend)
    artifact.save(tmp_path / "model.dvt")
    found = dovetail.load(tmp_path / "model.dvt", trust=True)(x, y)
    torch.testing.assert_close(found, artifact(x, y), rtol=0, atol=0)
    torch.testing.assert_close(found, Both()(x, y))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@both
def test_a_second_gpu(tmp_path, backend):
    model = Block("cuda:1").eval()
    given, wanted = saved(tmp_path / "model.dvt", backend, model, 32)
    run = dovetail.load(tmp_path / "model.dvt", trust=True)
    torch.testing.assert_close(run(given[0]), wanted[0], rtol=0, atol=0)
    with pytest.raises(errors.GuardFailed, match="cuda:0"):
        run(given[0].to("cuda:0"))
