"""Each test has a cache folder of its own, and counts from nothing."""

from __future__ import annotations

import pytest

from dovetail import cache
from dovetail.cache import record, remote
from dovetail.cache.local import Local


@pytest.fixture(autouse=True)
def local(tmp_path):
    """The folder's store, as the settings have it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SIZE", "WAIT", "REMOTE", "KEY"):
            patch.delenv(f"DOVETAIL_CACHE_{name}", raising=False)
        patch.setenv("DOVETAIL_CACHE", "1")
        patch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
        held = cache.configure()
        record.reset()
        yield Local(held.folder, held.size)
    remote.forget()
    cache.configure()
    record.reset()


@pytest.fixture
def secret(tmp_path):
    """The secret whose file is configured."""
    path = tmp_path / "cache.key"
    path.write_text("5e" * 32 + "\n")
    path.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE_KEY", str(path))
        yield bytes.fromhex("5e" * 32)


@pytest.fixture(scope="module")
def graph():
    """A graph of Dynamo's."""
    from tests.cache.graphs import capture, t

    (found, *_) = capture(lambda x: x * 2, t(4))
    return found
