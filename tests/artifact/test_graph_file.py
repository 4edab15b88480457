"""Files of models on a GPU, as far as they go without one; tests/test_gpu_files.py has the rest."""

import contextlib
import json
import random

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors
from dovetail.artifact import graph_file
from dovetail.artifact import save as saving
from dovetail.artifact.graph_file import graph_from_bytes, is_on_gpu
from dovetail.artifact.spec_tree import pytree, spec_of, tree_of
from dovetail.compiled.graph import CompiledPart
from dovetail.ir import Input
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.blobs import compiled_graph
from dovetail.runtime.loaded import INSPECT, open_native


class Counting(nn.Module):
    """Parameters, state, a keyword, results in a tree, and a number among them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale, *, bias):
        self.calls.add_(1)
        y = torch.softmax(self.linear(x), -1) * scale + bias
        return {"y": y, "more": [self.calls * 2, (x.shape[0],)]}


def given(rows=4):
    return (torch.randn(rows, 8), 2.5), {"bias": torch.ones(8)}


def exported(backend="aten"):
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "scale": None, "bias": None}
    args, kwargs = given()
    return dovetail.export(Counting(), args, kwargs, dynamic_shapes=shapes, backend=backend)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of a graph, whose devices are processors here."""
    monkeypatch.setattr(saving, "is_on_gpu", lambda _: True)
    artifact = exported()
    artifact.save(tmp_path / "model.dvt")
    return tmp_path / "model.dvt", artifact


def test_a_saved_graph_gives_what_the_artifact_gives(file):
    path, artifact = file
    loaded = dovetail.load(path, trust=True)
    for rows in (4, 7, 4):
        args, kwargs = given(rows)
        found, wanted = loaded(*args, **kwargs), artifact(*args, **kwargs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert loaded.state.keys() == {"calls"}
    torch.testing.assert_close(loaded.state["calls"], torch.tensor(3.0))


def test_what_was_loaded_can_be_saved_again(file, tmp_path):
    path, _ = file
    dovetail.load(path, trust=True).save(tmp_path / "again.dvt")
    again = dovetail.load(tmp_path / "again.dvt", trust=True)
    args, kwargs = given()
    torch.testing.assert_close(
        again(*args, **kwargs)["y"], dovetail.load(path, trust=True)(*args, **kwargs)["y"]
    )


def test_arguments_are_held_to_what_was_exported(file):
    loaded = dovetail.load(file[0], trust=True)
    (x, scale), kwargs = given()
    with pytest.raises(errors.GuardFailed, match="may be 2 to 64"):
        loaded(x[:1], scale, **kwargs)
    with pytest.raises(errors.GuardFailed, match=r"exported as 2\.5"):
        loaded(x, 3.0, **kwargs)
    with pytest.raises(errors.GuardFailed, match="is float64"):
        loaded(x.double(), scale, **kwargs)


def test_it_runs_only_where_it_is_trusted(file, tmp_path):
    path, artifact = file
    with pytest.raises(errors.UntrustedArtifact, match="sign it, or vouch"):
        dovetail.load(path)
    artifact.save(tmp_path / "signed.dvt", key=bytes(range(32)))
    from dovetail import _native

    public = _native.public_key(bytes(range(32)))
    dovetail.load(tmp_path / "signed.dvt", trusted_keys=[public])
    with pytest.raises(errors.UntrustedArtifact):
        dovetail.load(tmp_path / "signed.dvt", trusted_keys=[])


def test_what_a_gpu_has_no_use_for_is_refused(file, tmp_path):
    _, artifact = file
    with pytest.raises(errors.CannotSave, match="without_torch"):
        artifact.save(tmp_path / "x.dvt", without_torch=True)
    with pytest.raises(errors.CannotSave, match="compiled for alone"):
        artifact.save(tmp_path / "x.dvt", targets="x86-64-v3")


def test_graphs_with_a_tensor_on_a_gpu_are_saved_so():
    def part(device):
        return CompiledPart((Input("x", TensorDesc("float32", (2,), (1,), device)),), (), (), {})

    assert is_on_gpu(part("cuda:1"))
    assert not is_on_gpu(part("cpu"))


def test_a_gpu_is_told_from_another():
    from dovetail.artifact.guards import _is_on

    assert _is_on(torch.device("cuda", 1), "cuda:1")
    assert _is_on(torch.device("cuda", 1), "cuda")
    assert not _is_on(torch.device("cuda", 0), "cuda:1")
    assert not _is_on(torch.device("cpu"), "cuda:0")
    assert _is_on(torch.device("cpu"), "cpu")


def bytes_of(path):
    return compiled_graph(open_native(str(path), flags=INSPECT))


def test_constants_of_a_device_that_is_not_there(file, monkeypatch):
    def absent(desc, contents):
        raise AssertionError("Torch not compiled with CUDA enabled")

    data = bytes_of(file[0])
    monkeypatch.setattr(graph_file, "tensor_from_bytes", absent)
    with pytest.raises(errors.UnsupportedArtifact, match="not compiled with CUDA"):
        graph_from_bytes(data)


def test_damaged_bytes_end_in_a_typed_error(file):
    """A trusted file may be damaged all the same: what cannot be read is refused as a whole."""
    data, generator = bytes_of(file[0]), random.Random(5)
    head = 16 + int.from_bytes(data[8:16], "little")
    for cut in (0, 3, 15, 16, head - 1, head, len(data) - 1):
        with pytest.raises(errors.InvalidArtifact):
            graph_from_bytes(data[:cut])
    for _ in range(1500):
        place, value = generator.randrange(head + 3000), generator.randrange(256)
        changed = data[:place] + bytes([value]) + data[place + 1 :]
        with contextlib.suppress(errors.InvalidArtifact, errors.UnsupportedArtifact):
            graph_from_bytes(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"writes": [["state", "other"]]},
        {"writes": [["user", "9"]]},
        {"writes": []},
        {"returned": [[0, 9]]},
        {"roles": []},
        {"tensors": []},
        {"results": {"tuple": [{"value": 3}]}},
        {"results": {"tuple": [{"tensor": 1}]}},
        {"arguments": {"tuple": []}},
        {"graph": -1},
    ],
    ids=lambda change: f"{next(iter(change))}",
)
def test_parts_that_do_not_fit_each_other_are_refused(file, change):
    data = bytes_of(file[0])
    length = int.from_bytes(data[8:16], "little")
    head = {**json.loads(data[16 : 16 + length]), **change}
    text = json.dumps(head).encode()
    made = data[:8] + len(text).to_bytes(8, "little") + text + data[16 + length :]
    with pytest.raises(errors.InvalidArtifact):
        graph_from_bytes(made)


def test_trees_are_pytorchs_descriptions_both_ways():
    value = ((1, [2, {"b": 3, "a": (4,)}]), {})
    spec = pytree.tree_structure(value)
    tree = tree_of(spec, ({"tensor": n} for n in range(4)))
    assert spec_of(tree, 4) == spec
    with pytest.raises(ValueError, match="not in order"):
        spec_of(tree, 3)
