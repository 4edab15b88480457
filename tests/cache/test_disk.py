"""Disks that are full or may only be read: everything works without, and says so once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail import cache
from dovetail.cache import Hit
from tests.cache.samples import KEY, NOBODY

pytestmark = pytest.mark.e2e

# Prints each warning, and then "works" where all of it did.
USE = """
import sys, warnings
from dovetail import cache
from tests.cache.samples import KEY, key
warnings.simplefilter("always")
{before}
found = cache.lookup(KEY)
assert {found}, found
other = key(graph="other")
for _ in range(2):
    with cache.compiling(other) as payload:
        assert payload is None
        cache.store(other, bytes(200_000))
assert isinstance(cache.lookup(other), cache.Miss)
print("works")
"""
HIT, MISS = "found == cache.Hit(b'small', 'local')", "type(found) is cache.Miss"


def use(found, before="", wrap=(), **environment):
    """The program in a process of its own; its warnings."""
    ran = subprocess.run(
        [*wrap, sys.executable, "-c", USE.replace("{before}", before).replace("{found}", found)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "works\n", ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return [line for line in ran.stderr.splitlines() if "CacheWarning" in line]


def test_files_that_may_not_grow(local):
    cache.store(KEY, b"small")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    [warning] = use(HIT, limit)
    assert "compiled code is not kept in the cache: File too large" in warning
    assert [kept.digest for kept in local.entries()] == [KEY.digest]
    assert not list(Path(local.path).glob("*.tmp"))


def can_mount():
    return not subprocess.run(
        ["unshare", "-m", "true"], capture_output=True, check=False
    ).returncode


@pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
def test_a_full_disk(tmp_path):
    small = f'mount -t tmpfs -o size=100k,mode=700 none {tmp_path} && exec "$@"'
    [warning] = use(MISS, wrap=["unshare", "-m", "sh", "-c", small, "sh"])
    assert "compiled code is not kept in the cache: No space left on device" in warning


@pytest.mark.skipif(not can_mount(), reason="only root can mount a disk for reading")
def test_a_disk_that_may_only_be_read_still_gives_hits(local):
    cache.store(KEY, b"small")
    bind = f"mount --bind {local.path} {local.path} && mount -o remount,ro,bind {local.path}"
    [warning] = use(HIT, wrap=["unshare", "-m", "sh", "-c", f'{bind} && exec "$@"', "sh"])
    assert "compiled code is not kept in the cache: Read-only file system" in warning


def test_a_folder_that_may_only_be_read_still_gives_hits():
    """As a container has it whose image brings a filled cache: root's, and for others to read."""
    with tempfile.TemporaryDirectory() as place:  # pytest's folders are for their user alone
        Path(place).chmod(0o755)
        folder = Path(place, "cache")
        cache.configure(folder=folder)
        cache.store(KEY, b"small")
        (folder / f"{KEY.digest}.entry").chmod(0o444)
        folder.chmod(0o555)
        plain = f"import os; os.geteuid() or os.setuid({NOBODY})"
        [warning] = use(HIT, plain, DOVETAIL_CACHE_DIR=str(folder))
        assert "compiled code is not kept in the cache: Permission denied" in warning
        assert cache.lookup(KEY) == Hit(b"small", "local")
        folder.chmod(0o700)
