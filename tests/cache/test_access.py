"""Looking up and storing: what comes back, what is counted, what is said."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from dovetail import cache, errors
from dovetail.cache import Bypass, Hit, Miss
from dovetail.cache.settings import current, parse_size
from tests.cache.samples import KEY, PARTS, key


@pytest.mark.parametrize("payload", [b"", b"x", os.urandom(3_000_000)], ids=len)
def test_what_was_stored_comes_back(payload):
    cache.store(KEY, payload, seconds=1.5, label="a model")
    assert cache.lookup(KEY) == Hit(payload, "local")


def test_a_second_store_replaces_the_first():
    cache.store(KEY, b"one")
    cache.store(KEY, b"two")
    assert cache.lookup(KEY) == Hit(b"two", "local")


def test_a_miss_names_the_parts_in_which_the_nearest_key_differs():
    cache.store(key(), b"x")
    cache.store(key(graph="mul(a, b)", options="freeze=True"), b"y")
    assert cache.lookup(key(options="freeze=True")).nearest == ("options",)
    assert cache.lookup(key(graph="sub", dovetail="2")).nearest == ("graph", "dovetail")
    assert cache.lookup(cache.Key.of({**PARTS, "more": ""})).nearest == ("more",)


def test_a_part_that_few_keys_share_tells_more_than_one_that_many_share():
    mine = cache.Key.of({"graph": "mine", "options": "old", "version": "1"})
    cache.store(mine, b"")
    for i in range(5):  # other models, compiled since
        cache.store(cache.Key.of({"graph": str(i), "options": "new", "version": "2"}), b"")
    changed = cache.Key.of({"graph": "mine", "options": "new", "version": "2"})
    assert cache.lookup(changed).nearest == ("options", "version")


def test_the_first_miss_has_nothing_to_compare_with(local):
    assert cache.lookup(KEY) == Miss("nothing is stored under this key", ())
    assert not Path(local.path).exists(), "a lookup needs no folder"


def test_many_keys_are_remembered_in_little_space(local, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 2,500 waits for a disk
    for i in range(2500):
        local.write(key(graph=str(i)), [b""])
    assert Path(local.path, "recent").stat().st_size <= 128 << 10
    assert cache.lookup(key(graph="2499", options="new")).nearest == ("options",)


def test_everything_is_counted_and_logged(caplog):
    caplog.set_level(logging.INFO, "dovetail.cache")
    cache.lookup(KEY)
    cache.store(KEY, b"x")
    cache.lookup(KEY)
    cache.lookup(key(graph="other"))
    cache.bypass("a custom operator")
    assert cache.stats() == cache.Stats(
        hits=1, misses=2, stored=1, bypasses={"a custom operator": 1}
    )
    said = [message.partition(":")[0] for message in caplog.messages]
    assert said == ["miss", "stored", "hit (local)", "miss", "bypass"]
    assert caplog.messages[3].endswith("the nearest key differs in graph")


def test_off_means_nothing_is_read_or_written(monkeypatch, local):
    cache.store(KEY, b"x")
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
    assert cache.lookup(KEY) == Bypass("the cache is off")
    other = key(graph="other")
    cache.store(other, b"y")
    with cache.compiling(other) as payload:
        assert payload is None
    assert [kept.digest for kept in local.entries()] == [KEY.digest]
    assert cache.stats().bypasses == {"the cache is off": 1}


def test_configure_goes_before_the_variables(tmp_path):
    held = cache.configure(folder=tmp_path / "other", size="3k", wait=2, enabled=True)
    assert (held.folder, held.size, held.wait) == (str(tmp_path / "other"), 3072, 2.0)
    cache.store(KEY, b"x")
    assert (tmp_path / "other" / f"{KEY.digest}.entry").exists()
    assert cache.configure().folder == str(tmp_path / "cache")


def test_the_folder_is_the_users_cache_folder(monkeypatch):
    monkeypatch.delenv("DOVETAIL_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert current().folder == "/home/me/.cache/dovetail"
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert current().folder == "/scratch/dovetail"


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("12", 12), ("2K", 2048), ("1.5m", 3 << 19), ("4 GiB", 4 << 30)]
)
def test_sizes_have_units(text, size):
    assert parse_size("size", text) == size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DOVETAIL_CACHE", "perhaps"),
        ("DOVETAIL_CACHE_SIZE", "large"),
        ("DOVETAIL_CACHE_SIZE", "-1"),
        ("DOVETAIL_CACHE_WAIT", "nan"),
        ("DOVETAIL_CACHE_REMOTE", "myserver"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch, local, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(errors.InvalidOption, match=f"{name}.*{text}"):
        cache.lookup(KEY)
    with pytest.warns(errors.CacheWarning, match=name):
        cache.store(KEY, b"")  # never raises
