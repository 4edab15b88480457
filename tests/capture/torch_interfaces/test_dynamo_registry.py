"""Dynamo's registry of backends."""

import torch

from dovetail.capture._torch.dynamo_registry import (
    announce_backend,
    known_dynamo_backends,
    lookup_dynamo_backend,
    withdraw_backend,
)


def test_dynamo_registry():
    from torch._dynamo.backends import registry

    assert isinstance(registry._BACKENDS, dict)
    assert isinstance(registry._COMPILER_FNS, dict)
    assert lookup_dynamo_backend("aot_eager") is not None
    assert lookup_dynamo_backend("no such backend") is None
    assert "inductor" in known_dynamo_backends()


def test_announce_and_withdraw():
    from torch._dynamo.backends import registry

    announce_backend("interface_test", lambda: lambda gm, inputs: gm.forward, ())
    assert torch.compile(lambda x: x + 1, backend="interface_test")(torch.ones(1)) == 2
    withdraw_backend("interface_test")
    assert "interface_test" not in registry._BACKENDS
