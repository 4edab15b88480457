"""The folder: only what is whole and ours is read, and it stays within its bound."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from dovetail import cache
from dovetail.cache import Bypass, Hit, Miss
from dovetail.errors import CacheWarning
from tests.cache.samples import KEY, NOBODY, key, path_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
PAYLOAD = bytes(range(256)) * 4


def refused(local, digest=KEY.digest):
    """The reason for a miss, whose entry is gone afterwards and can be stored again."""
    found = cache.lookup(KEY)
    assert type(found) is Miss
    assert not path_of(local, digest).exists()
    assert not path_of(local, digest).is_symlink()
    cache.store(KEY, PAYLOAD)
    assert cache.lookup(KEY) == Hit(PAYLOAD, "local")
    return found.reason


def test_folder_and_files_are_the_users_alone(local):
    cache.store(KEY, PAYLOAD)
    cache.lookup(key(graph="other"))
    assert stat.S_IMODE(Path(local.path).stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(local.path).iterdir()}
    assert set(modes.values()) == {0o600}
    assert modes.keys() == {f"{KEY.digest}.entry", "size", "recent", "last_miss"}


def test_every_length_of_a_truncated_entry_is_a_miss(local):
    cache.store(KEY, b"payload")
    whole = path_of(local).read_bytes()
    for length in range(len(whole)):
        path_of(local).write_bytes(whole[:length])
        assert type(cache.lookup(KEY)) is Miss, length
        assert not path_of(local).exists()
    path_of(local).write_bytes(whole)
    assert cache.lookup(KEY) == Hit(b"payload", "local")


def test_a_flipped_bit_in_any_byte_is_a_miss(local):
    cache.store(KEY, b"payload")
    whole = path_of(local).read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        path_of(local).write_bytes(flipped)
        assert type(cache.lookup(KEY)) is Miss, at
        assert not path_of(local).exists()


def test_something_after_an_entry_is_a_miss(local):
    cache.store(KEY, PAYLOAD)
    with path_of(local).open("ab") as file:
        file.write(b"\0")
    assert refused(local) == "the entry was refused: something follows it"


def test_the_entry_of_another_key_is_a_miss(local):
    other = key(graph="other")
    cache.store(other, PAYLOAD)
    shutil.copy(path_of(local, other.digest), path_of(local))
    assert refused(local) == "the entry was refused: it is the entry of another key"
    assert cache.lookup(other) == Hit(PAYLOAD, "local")


def test_a_symbolic_link_is_a_miss_and_its_target_stays(local, tmp_path):
    cache.store(KEY, PAYLOAD)
    path_of(local).rename(tmp_path / "target")
    path_of(local).symlink_to(tmp_path / "target")
    assert refused(local) == "the entry was refused: it is a symbolic link"
    assert (tmp_path / "target").exists()


@needs_root
def test_the_entry_of_another_user_is_a_miss(local):
    cache.store(KEY, PAYLOAD)
    os.chown(path_of(local), NOBODY, NOBODY)
    assert refused(local) == "the entry was refused: it belongs to another user"


def test_an_entry_that_others_may_write_to_is_a_miss(local):
    cache.store(KEY, PAYLOAD)
    path_of(local).chmod(0o620)
    assert refused(local) == "the entry was refused: others may write to it"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_a_miss(local, make):
    cache.store(key(graph="other"), b"")
    make(path_of(local))
    assert cache.lookup(KEY).reason == "the entry was refused: it is no regular file"


# ---- folders that are not used -------------------------------------------------------------


def unused(match):
    """Each use works without the folder; one warning for reading, one for writing."""
    for use in (use_for_reading, use_for_writing):
        with pytest.warns(CacheWarning, match=match) as warned:
            use()
        assert len(warned) == 1
    with cache.compiling(KEY) as payload:
        assert payload is None


def use_for_reading():
    assert type(cache.lookup(KEY)) is Bypass
    assert type(cache.lookup(KEY)) is Bypass


def use_for_writing():
    cache.store(KEY, PAYLOAD)
    cache.store(KEY, PAYLOAD)


def test_a_folder_that_is_a_link_is_not_used(local, tmp_path):
    (tmp_path / "elsewhere").mkdir(0o700)
    Path(local.path).symlink_to(tmp_path / "elsewhere")
    unused("is a symbolic link: set DOVETAIL_CACHE_DIR to a folder of yours")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(local, mode):
    cache.store(KEY, PAYLOAD)
    Path(local.path).chmod(mode)
    unused("may be written by others: chmod 700 it")
    Path(local.path).chmod(0o700)
    assert cache.lookup(KEY) == Hit(PAYLOAD, "local")


@needs_root
def test_a_folder_of_another_user_is_not_used(local):
    cache.store(KEY, PAYLOAD)
    os.chown(local.path, NOBODY, NOBODY)
    unused("belongs to another user: set DOVETAIL_CACHE_DIR")


def test_a_file_in_the_folders_place_is_not_used(local):
    Path(local.path).write_text("")
    unused("is no folder")


@pytest.mark.filterwarnings("error::dovetail.errors.CacheWarning")
def test_warnings_as_errors_do_not_stop_a_compilation(local):
    Path(local.path).write_text("")
    assert type(cache.lookup(KEY)) is Bypass
    cache.store(KEY, PAYLOAD)


def test_a_folder_that_is_deleted_is_made_again(local):
    cache.store(KEY, PAYLOAD)
    shutil.rmtree(local.path)
    assert type(cache.lookup(KEY)) is Miss
    with cache.compiling(KEY) as payload:
        assert payload is None
        shutil.rmtree(local.path)
        cache.store(KEY, PAYLOAD)
    assert cache.lookup(KEY) == Hit(PAYLOAD, "local")


# ---- the bound -----------------------------------------------------------------------------


def sized(count):
    return [key(graph=str(i)) for i in range(count)]


def age(local, used, seconds_ago):
    when = time.time() - seconds_ago
    os.utime(path_of(local, used.digest), (when, when))


def test_the_least_recently_used_goes_first(local):
    cache.configure(size=100_000)
    keys = sized(9)
    for i, each in enumerate(keys):
        cache.store(each, bytes(10_000))
        age(local, each, 1000 - i)
    cache.lookup(keys[0])  # used last now
    cache.store(key(graph="new"), bytes(15_000))
    left = {kept.digest for kept in local.entries()}
    assert left == {each.digest for each in [keys[0], *keys[4:], key(graph="new")]}


def test_the_folder_stays_within_its_bound_whatever_is_stored(local):
    cache.configure(size=50_000)
    for i, each in enumerate(sized(60)):
        cache.store(each, bytes(100 + 997 * i % 9_000))
        assert sum(kept.size for kept in local.entries()) <= 50_000
        assert type(cache.lookup(each)) is Hit


def test_an_entry_larger_than_the_bound_is_not_kept_and_removes_nothing(local):
    cache.configure(size=20_000)
    cache.store(KEY, bytes(10_000))
    cache.store(key(graph="large"), bytes(20_001))
    assert [kept.digest for kept in local.entries()] == [KEY.digest]


def test_a_store_does_not_look_through_the_folder(local, monkeypatch):
    cache.store(KEY, PAYLOAD)
    monkeypatch.setattr(os, "scandir", None)
    cache.store(key(graph="other"), PAYLOAD)
    cache.lookup(key(graph="other"))
    cache.lookup(key(graph="a miss"))
    assert cache.stats().stored == 2


@pytest.mark.parametrize("text", ["", "garbage", "-5", "9" * 20, "00000000000000000000\n"])
def test_a_wrong_count_is_put_right(local, text):
    cache.configure(size=50_000)
    for each in sized(4):
        cache.store(each, bytes(10_000))
    Path(local.path, "size").write_text(text)
    for each in sized(12):
        cache.store(each, bytes(10_000))
    if not text.startswith("000"):  # nothing but a look at the folder can know better
        assert sum(kept.size for kept in local.entries()) <= 50_000
    for each in sized(12):
        cache.store(each, bytes(10_000))
    assert sum(kept.size for kept in local.entries()) <= 50_000


def test_what_killed_processes_left_is_removed(local):
    cache.configure(size=50_000)
    cache.store(KEY, bytes(10_000))
    left = [Path(local.path, name) for name in ("123-abc.tmp", f"{KEY.digest}.lock")]
    for path in left:
        path.touch()
        os.utime(path, (0, 0))
    for each in sized(5):
        cache.store(each, bytes(10_000))
    assert not any(path.exists() for path in left)


def test_clear_removes_everything(local):
    for each in sized(3):
        cache.store(each, PAYLOAD)
    cache.lookup(KEY)
    assert cache.clear() == 3
    assert not list(Path(local.path).iterdir())
    assert cache.clear() == 0
