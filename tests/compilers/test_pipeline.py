"""The option ``compile``, from torch.compile to results."""

import os
import warnings

import pytest
import torch
from torch import nn

import dovetail
from dovetail import history
from dovetail.compilers import process
from dovetail.errors import BackendFailed, FallbackWarning, VerificationFailed
from tests.compilers.trouble import Trouble
from tests.differential import needs_code
from tests.models import GPT

WAYS = ("in-process", "serialize", "subprocess")


def train(model, tokens, **options):
    """Loss and gradients of a compiled model."""
    model.zero_grad()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="dovetail", options=options)
    loss = compiled(tokens).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@needs_code
@pytest.mark.e2e
def test_every_way_trains_to_the_same_bits():
    model, tokens = GPT(layers=1), torch.arange(12).reshape(2, 6)
    found = {way: train(model, tokens, compile=way) for way in WAYS}
    for way in WAYS[1:]:
        torch.testing.assert_close(found[way], found["in-process"], rtol=0, atol=0)
    assert process.every_worker


def test_dynamic_shapes_and_freezing():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    options = {"compile": "subprocess", "freeze": True}
    compiled = torch.compile(model, backend="cpu", dynamic=True, options=options)
    with torch.no_grad():
        for rows in (2, 5, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x))


def blocks(x, count=4, trouble=torch.neg):
    """Segments of the troublemaker, between calls that it refuses."""
    for n in range(count):
        x = torch.sin(trouble(x * 3) if n == 1 else torch.neg(x * 3))
    return x


def run(fn, x, **options):
    torch.compiler.reset()
    return torch.compile(fn, backend="trouble", options={"compile": "subprocess", **options})(x)


TROUBLES = [
    ({"backend_options": {"how": "segfault"}}, r"crashed \(SIGSEGV\)"),
    ({"backend_options": {"how": "hang_in_c"}, "compile_timeout": 1}, "longer than 1 s"),
    ({"backend_options": {"how": "eat"}, "compile_memory": 300 << 20}, "more than 300 MB"),
]


@pytest.mark.parametrize(("options", "reason"), TROUBLES, ids=["segfault", "hang", "eat"])
def test_trouble_is_one_warning_and_the_next_backend(trouble, options, reason):
    x = torch.randn(5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run(blocks, x, strict=False, **options)
    torch.testing.assert_close(found, blocks(x))
    (told,) = [w for w in caught if issubclass(w.category, FallbackWarning)]
    assert str(told.message).startswith("4 segments fall back from trouble to aten: the compiler")
    with pytest.raises(BackendFailed, match=reason) as raised:
        run(blocks, x, strict=True, **options)
    (note,) = [n for n in raised.value.__notes__ if n.startswith("it was compiling these lines:")]
    assert "test_pipeline.py:" in note
    assert note.endswith("x = torch.sin(trouble(x * 3) if n == 1 else torch.neg(x * 3))")


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_of_ours_is_told_and_not_run_by_others(trouble, way):
    options = {"backend_options": {"how": "go_wrong"}, "compile": way, "strict": False}
    with pytest.raises(VerificationFailed, match="'schedule' made is not valid"):
        run(blocks, torch.randn(5), debug=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(blocks, torch.randn(5), debug=False, **options)


def test_one_segment_falls_back_and_the_others_stay(trouble):
    x = torch.randn(5)
    with pytest.warns(FallbackWarning, match=r"segment_\d+ falls back from trouble to aten"):
        found = run(lambda x: blocks(x, trouble=torch.exp), x, strict=False)
    torch.testing.assert_close(found, blocks(x, trouble=torch.exp))
    (graph,) = history.recent()[-1].graphs
    names = [segment.backend for segment in graph.segments]
    assert names.count("trouble") == 3


@pytest.mark.parametrize("way", WAYS)
def test_identical_segments_are_compiled_once(trouble, monkeypatch, way):
    compiled = []
    compile_segment = Trouble.compile
    monkeypatch.setattr(
        Trouble, "compile", lambda self, s: compiled.append(s) or compile_segment(self, s)
    )
    x = torch.randn(5)
    for n in (5, 6):
        x = torch.randn(n)
        torch.testing.assert_close(run(blocks, x, compile=way), blocks(x))
    assert len(compiled) == (0 if way == "subprocess" else 2)


def test_a_second_backend_gets_what_the_first_cannot_compile(trouble):
    class Second(Trouble):
        name = "second"

    x = torch.randn(5)
    with dovetail.registered_backend(Second):
        options = {"backends": ["trouble", "second"], "backend_options": {"how": "leave"}}
        with pytest.warns(FallbackWarning, match="fall back from trouble to second"):
            found = run(blocks, x, strict=False, **options)
    torch.testing.assert_close(found, blocks(x))
    assert any("second compiles in this process" in n for n in history.recent()[-1].notes)


def test_what_is_compiled_here_is_said_in_the_report(trouble):
    x = torch.randn(5)
    backends = [Trouble()]
    found = torch.compile(
        blocks, backend="dovetail", options={"compile": "subprocess", "backends": backends}
    )(x)
    torch.testing.assert_close(found, blocks(x))
    (note,) = history.recent()[-1].notes
    assert note == (
        "trouble compiles in this process, not in a worker: "
        "it was passed as an object, not by its name"
    )
    assert str(os.getpid()) not in note


def test_serialize_reads_back_what_is_compiled_and_what_runs(monkeypatch):
    from dovetail.backends.cpu.backend import CpuBackend

    segments, blobs = [], []
    compile_segment, load = CpuBackend.compile, CpuBackend.load

    def compiling(self, segment):
        segments.append(segment)
        blobs.append(compile_segment(self, segment))
        return blobs[-1]

    def loading(self, blob):
        assert blob == blobs[-1]
        assert blob.data is not blobs[-1].data
        return load(self, blob)

    monkeypatch.setattr(CpuBackend, "compile", compiling)
    monkeypatch.setattr(CpuBackend, "load", loading)
    x = torch.randn(5)
    compiled = torch.compile(torch.sin, backend="cpu", options={"compile": "serialize"})
    torch.testing.assert_close(compiled(x), torch.sin(x))
    assert len(segments) == len(blobs) == 1
