"""PyTorch's own saving of cache entries."""

import torch

from dovetail.capture._torch.cache_artifacts import record_cache_artifact, register_cache_artifact


def test_types_of_cache_artifacts():
    from torch.compiler._cache import CacheArtifactFactory, CacheArtifactManager

    seen = []
    with CacheArtifactManager.with_fresh_cache():
        register_cache_artifact("interface_test", lambda *entry: seen.append(entry))
        register_cache_artifact("interface_test", print)  # the first one stays
        try:
            for content in (b"first", b"second"):  # a key is recorded once
                record_cache_artifact("interface_test", "key", content)
            data, _ = torch.compiler.save_cache_artifacts()
            torch.compiler.load_cache_artifacts(data)
        finally:
            CacheArtifactFactory._artifact_types.pop("interface_test")
    assert seen == [("key", b"first")]
