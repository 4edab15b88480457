"""Plug-ins that compile whole segments: blobs, and the four states of their compatibility."""

import pytest
import torch

from dovetail import Blob, errors, registry
from dovetail.backends.plugin.backend import plugin_backend
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from tests.plugin.test_faults import small

pytestmark = pytest.mark.e2e
__all__ = ["small"]


def relus():
    """Two relus with a view between them."""
    flat, square = TensorDesc("float32", (16,), (1,)), TensorDesc("float32", (4, 4), (4, 1))
    calls = (
        OpCall("a", "aten.relu.default", (Ref("x", flat),), {}, flat),
        OpCall("b", "aten.view.default", (Ref("a", flat), (4, 4)), {}, square),
        OpCall("c", "aten.relu.default", (Ref("b", square),), {}, square),
    )
    return Segment("relus", (Input("x", flat),), calls, (Ref("c", square),))


@pytest.fixture
def backend(small):
    return plugin_backend(small("COMPILES"))()


def check(run):
    for _ in range(2):
        x = torch.randn(16)
        torch.testing.assert_close(run([x]), [torch.relu(x).view(4, 4)])


@pytest.mark.parametrize(("state", "compilations"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_the_state_of_a_blob_decides_whether_it_is_compiled_again(
    backend, monkeypatch, state, compilations
):
    blob = backend.compile(relus())
    assert blob.is_portable
    monkeypatch.setenv("SMALL_BLOB_STATE", str(state))
    check(backend.load(blob))
    assert backend.opened.native.get("compiled") == compilations


def test_a_segment_that_is_refused_runs_kernel_by_kernel(backend):
    segment = relus()
    segment = Segment(
        "two", segment.inputs, segment.calls, (*segment.outputs, Ref("a", segment.calls[0].output))
    )
    run = backend.load(backend.compile(segment))
    x = torch.randn(16)
    torch.testing.assert_close(run([x]), [torch.relu(x).view(4, 4), torch.relu(x)])
    assert backend.opened.native.get("compiled") == 0
    assert backend.opened.native.counters()["kernels"] == 2


def test_under_torch_compile(backend):
    with registry.registered_backend(type(backend)):
        compiled = torch.compile(lambda x: torch.relu(torch.relu(x)), backend="small")
        x = torch.randn(3, 5)
        torch.testing.assert_close(compiled(x), torch.relu(x))
    assert backend.opened.native.counters()["kernels"] == 1


def test_bytes_that_are_no_blob(backend):
    good = backend.compile(relus()).data
    for data in [b"", b"nonsense" * 8, good[:10], good[:40]]:
        with pytest.raises(errors.UnsupportedGraph):
            backend.load(Blob(data))
    check(backend.load(Blob(good[:-1])))  # damaged code is compiled again
