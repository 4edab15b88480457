"""What PyTorch is in the middle of."""

import pytest
import torch
from torch.nn import functional as F

from dovetail.capture._torch import frames
from dovetail.capture._torch.dynamo_registry import lookup_dynamo_backend
from dovetail.capture._torch.precompile import is_precompiling, precompile_id
from tests.marks import needs_precompile


@needs_precompile
def test_what_an_entry_is_read_for(tmp_path):
    from torch._dynamo import package

    seen = []

    def read(*_):
        seen.append(frames.asked_for())
        raise RuntimeError

    class Net(torch.nn.Module):
        def forward(self, x):
            return x + 1

    net = Net()
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(caching_precompile=True):
        (tmp_path / package.CompilePackage.source_id_from_fn(net.forward)).mkdir()
        patch.setattr(package.DiskDynamoCache, "path_prefix", lambda _: str(tmp_path))
        patch.setattr(package.DiskDynamoStore, "load_cache_entry", read)
        torch.compile(net, backend="aot_eager", dynamic=False)
    assert seen[0].function == net.forward
    assert seen[0].compiler is lookup_dynamo_backend("aot_eager")
    assert seen[0].options == {}
    assert frames.asked_for() is None
    assert not frames.is_loading_aot()


@needs_precompile
def test_what_is_traced_for_an_entry():
    seen = []

    def backend(gm, inputs):
        traced = frames.traced()
        seen.append((traced.function, list(traced.dropped), precompile_id(gm)))
        traced.guard_attributes("G['F'].silu", ("__qualname__",))
        return gm.forward

    def activated(x):
        return F.silu(x)

    with torch._dynamo.config.patch(caching_precompile=True):
        assert is_precompiling()
        torch.compile(activated, backend=backend)(torch.ones(2))
    function, dropped, key = seen[0]
    assert function is activated
    assert "G['F'].silu" in dropped
    assert key.startswith("__compiled_fn_")
    assert frames.traced() is None
    assert not is_precompiling()
