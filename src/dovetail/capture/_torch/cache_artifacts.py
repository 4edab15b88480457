"""Entries that ``torch.compiler.save_cache_artifacts`` saves along with PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable


def register_cache_artifact(kind: str, populate: Callable[[str, bytes], None]) -> None:
    """Let ``torch.compiler.load_cache_artifacts`` hand over what was recorded under this name."""
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    class GraphArtifact(CacheArtifact):  # type: ignore[misc]
        def populate_cache(self) -> None:
            populate(self.key, self.content)

        @staticmethod
        def type() -> str:
            return kind

    if kind not in CacheArtifactFactory._artifact_types:
        CacheArtifactFactory.register(GraphArtifact)


def record_cache_artifact(kind: str, key: str, content: bytes) -> None:
    """Have ``torch.compiler.save_cache_artifacts`` save it."""
    from torch.compiler._cache import CacheArtifactManager

    seen = CacheArtifactManager._seen_artifacts
    if not any(each.type() == kind and each.key == key for each in seen):
        CacheArtifactManager.record_artifact(kind, key, content)
