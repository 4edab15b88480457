"""What a file cannot carry is refused with its reason, and nothing is written."""

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors
from dovetail.artifact.save import pack, tensor_bytes
from dovetail.backend import Backend, Blob, Support
from dovetail.ir.tensor import TensorDesc


class Nonzero(nn.Module):
    def forward(self, x):
        return torch.nonzero(x) * 2


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))


class Named(nn.Module):
    def forward(self, x):
        return {"sum": x + 1, "name": "ours"}


class Sparse(nn.Module):
    def forward(self, x):
        return x.to_sparse()


class Number(nn.Module):
    def forward(self, x, n):
        return x * n


class Vendor(Backend):
    name = "vendor"

    def supports(self, call):
        return Support.yes()

    def compile(self, segment):
        return Blob(live=lambda inputs: inputs)

    def load(self, blob):
        return blob.live


@pytest.mark.parametrize(
    ("model", "args", "dynamic", "backend", "problem"),
    [
        (Nonzero(), (torch.eye(3),), None, "aten", "depends on data.*torch.where"),
        (Branches(), (torch.eye(3),), None, "aten", "subgraphs"),
        (Named(), (torch.eye(3),), None, "aten", "returns a str: .* tensors"),
        (Sparse(), (torch.eye(3),), None, "aten", "to_dense"),
        (nn.ReLU(), (torch.eye(3),), None, Vendor, "'vendor', whose code a file cannot carry"),
    ],
    ids=["data-dependent", "subgraphs", "text", "sparse", "vendor"],
)
def test_what_cannot_be_saved_is_named(model, args, dynamic, backend, problem, tmp_path):
    artifact = dovetail.export(model, args, dynamic_shapes=dynamic, backend=backend)
    with pytest.raises(errors.CannotSave, match=problem):
        artifact.save(tmp_path / "m.dvt")
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_varies_is_an_argument(tmp_path):
    x, shapes = torch.randn(3, 3), (None, torch.export.Dim.DYNAMIC)
    model = Number()
    dovetail.export(model, (x, 4), dynamic_shapes=shapes, backend="aten").save(tmp_path / "m.dvt")
    run = dovetail.load(tmp_path / "m.dvt")
    for n in (2, 4, 9):
        torch.testing.assert_close(run(x, n), model(x, n))


def test_constants_of_any_layout_are_written_as_they_lie():
    base = torch.arange(24.0).reshape(4, 6)
    for value in (base, base.t(), base[1:3, ::2], base[:1].expand(4, 6), base[0, 0], base[:0]):
        desc = TensorDesc("float32", tuple(value.shape), tuple(value.stride()))
        data = tensor_bytes(value, desc)
        if value.numel() == 0:
            assert len(data) == 0
            continue
        flat = torch.frombuffer(bytearray(data), dtype=torch.float32)
        assert torch.equal(flat.as_strided(value.shape, value.stride()), value)
    with pytest.raises(errors.CannotSave, match="meta"):
        tensor_bytes(torch.ones(2, device="meta"), TensorDesc("float32", (2,), (1,)))


def test_tied_weights_are_constants_and_results_stay_apart():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = x + self.w
            return y, y, self.w, x

    artifact = dovetail.export(Twice(), (torch.zeros(3),), backend="portable")
    program = pack(artifact.interface, artifact.linked).program
    assert len([o for o in program.outputs if isinstance(o, str)]) == 4
