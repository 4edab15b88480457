"""Our own tests run strict and with every graph verified after every pass."""

import os

os.environ.setdefault("DOVETAIL_STRICT", "1")
os.environ.setdefault("DOVETAIL_DEBUG", "1")

import pytest


@pytest.fixture(scope="session", autouse=True)
def _without_timing_of_guards():
    """Dynamo flushes the caches and times its guards at every compilation: a fifth of it all."""
    import torch._dynamo.guards

    with pytest.MonkeyPatch.context() as patch:
        name = "profile_guard_manager"
        patch.setattr(torch._dynamo.guards, name, lambda *_: 0.0, raising=False)
        yield


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
