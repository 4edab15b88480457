"""Our own tests run strict, every graph verified after every pass, every weight compared."""

import os

os.environ.setdefault("DOVETAIL_STRICT", "1")
os.environ.setdefault("DOVETAIL_DEBUG", "1")
# Several test processes share the cores. OpenMP's threads would wait for each other by spinning,
# which takes the time of those that they wait for: half of all that numbers take.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("DOVETAIL_CHECK_WEIGHTS", "1")
# No test finds what another left; those of the cache have folders of their own. The suite passes
# with the cache on as well: tests that look at how something is compiled use no_cache.
os.environ.setdefault("DOVETAIL_CACHE", "0")

import pytest


@pytest.fixture(scope="session", autouse=True)
def _verifying():
    """Tests that call a stage by itself verify what it makes, as compilations do with ``debug``."""
    from dovetail.ir.verify import verifying

    with verifying():
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_idle_work():
    """What PyTorch does at every compilation for nothing that is tested here.

    Dynamo flushes the caches and times its guards, a fifth of it all; AOTAutograd makes twelve
    empty tensors for random numbers of CUDA, a fifteenth.
    """
    import torch._dynamo.guards
    from torch._decomp import decompositions_for_rng

    empty = torch.tensor(())

    def reset(state):
        state.seed = state.base_offset = empty
        state.relative_offset, state.offset_advanced_at_least_once = 0, False

    with pytest.MonkeyPatch.context() as patch:
        name = "profile_guard_manager"
        patch.setattr(torch._dynamo.guards, name, lambda *_: 0.0, raising=False)
        patch.setattr(decompositions_for_rng.PhiloxState, "reset", reset)
        yield


def _skip_without_code(item):
    """A test of generated code is skipped where the processor runs none."""
    from dovetail.errors import BackendUnavailable, InterpretedKernels
    from dovetail.file.processors import no_code_here

    try:
        return (yield)
    except (BackendUnavailable, InterpretedKernels) as error:
        reason = no_code_here()
        if reason and reason in str(error):
            pytest.skip(reason)
        raise


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_skip_without_code)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_skip_without_code)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No compiled graph, default or record of another test is seen by this one."""
    import torch

    from dovetail import history, passes, registry

    registry.list_backends()  # tells Dynamo our names where dovetail is not installed

    torch.compiler.reset()
    history.clear()
    torch.manual_seed(0)
    yield
    passes.set_default(None)
    registry.set_default_backend(None)
    registry.set_default_backend(None, device="cpu")


@pytest.fixture
def no_cache(monkeypatch):
    """For tests that look at how something is compiled, which a hit in the cache spares."""
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
