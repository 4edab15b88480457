"""The pause of the cycle collector: for PyTorch's tracing and our stages, not for others' code."""

import gc

import pytest
import torch

import dovetail
from dovetail.backends.cpu.backend import CpuBackend
from dovetail.capture.collector import CollectorPause


@pytest.fixture
def collector():
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


def test_the_collector_is_off_within_and_on_where_it_is_lifted(collector):
    with CollectorPause() as pause:
        assert not gc.isenabled()
        with pause.lifted():
            assert gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off(collector):
    gc.disable()
    with CollectorPause() as pause, pause.lifted():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_lifting_a_pause_that_is_over_changes_nothing(collector):
    with CollectorPause() as pause:
        pass
    with pause.lifted():
        assert gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause(collector):
    with pytest.raises(ZeroDivisionError), CollectorPause() as pause, pause.lifted():
        raise ZeroDivisionError
    assert gc.isenabled()


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_passes_of_users_run_with_the_collector_on(collector, stage):
    seen = []

    def look(gm):
        seen.append(gc.isenabled())
        return gm

    passes = dovetail.passes.default().add(stage, look)
    fn = torch.compile(lambda x: x.sin().sum(), backend="cpu", options={"passes": passes})
    fn(torch.randn(4, requires_grad=True)).backward()
    assert seen
    assert all(seen)


@pytest.mark.usefixtures("no_cache")
def test_our_own_stages_run_with_the_collector_off(collector, monkeypatch):
    seen = []
    compile_ = CpuBackend.compile

    def look(self, segment):
        seen.append(gc.isenabled())
        return compile_(self, segment)

    monkeypatch.setattr(CpuBackend, "compile", look)
    fn = torch.compile(lambda x: x.sin().sum(), backend="cpu")
    result = fn(torch.randn(4, requires_grad=True))
    assert seen == [False]
    assert gc.isenabled()
    result.backward()  # its graph is compiled now, when nothing is traced any more
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.usefixtures("no_cache")
def test_backends_of_users_run_with_the_collector_on(collector):
    seen = []

    @dovetail.register_backend
    class Looking(CpuBackend):
        name = "looking"

        def compile(self, segment):
            seen.append(gc.isenabled())
            return super().compile(segment)

    torch.compile(lambda x: x.sin(), backend="looking")(torch.randn(4))
    assert seen == [True]
