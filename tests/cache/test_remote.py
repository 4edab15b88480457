"""A remote cache that works, and one that gives what it should not: nothing is believed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from dovetail import cache
from dovetail.cache import Hit, Miss, entry, remote, seal
from dovetail.errors import CacheWarning, InvalidKey
from tests.cache.samples import KEY, key, path_of


class Memory:
    """A server in this process, which counts what it is asked."""

    def __init__(self):
        self.held, self.gets, self.puts = {}, 0, 0

    def get(self, name, limit):
        self.gets += 1
        data = self.held.get(name)
        return None if data is None else data[: limit + 1]

    def put(self, name, data):
        self.puts += 1
        self.held[name] = data

    def close(self):
        pass


@pytest.fixture
def server(monkeypatch, secret):
    """The server that the configured URL leads to."""
    made = Memory()
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", "test://user:password@host/1?option=2")
    monkeypatch.setattr(remote, "connect", lambda url: made)
    return made


@pytest.fixture(params=["memory", "file"])
def url(request, monkeypatch, secret, tmp_path):
    """A URL of fsspec's."""
    pytest.importorskip("fsspec")
    url = "memory://shared/cache" if request.param == "memory" else f"file://{tmp_path}/shared"
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", url)
    return url


def on_another_machine(local):
    """From here on the folder is empty."""
    remote.flush()
    local.clear()


def use():
    """What a compilation does."""
    assert type(cache.lookup(KEY)) is Miss
    cache.store(KEY, b"x")
    remote.flush()


def filled(server, secret, local, payload=b"payload"):
    """The server holds the entry of ``KEY`` under this name, and the folder nothing."""
    cache.store(KEY, payload)
    on_another_machine(local)
    name = seal.name_of(secret, KEY.digest)
    assert server.held.keys() == {name}
    return name


def test_what_one_machine_stores_another_finds(url, local):
    payload = os.urandom(300_000)
    cache.store(KEY, payload)
    on_another_machine(local)
    assert cache.lookup(KEY) == Hit(payload, "remote")
    assert cache.lookup(KEY) == Hit(payload, "local"), "it was kept here too"
    assert type(cache.lookup(key(graph="other"))) is Miss
    assert cache.stats() == cache.Stats(hits=2, remote_hits=1, misses=1, stored=1)


def test_a_process_that_ends_writes_what_is_left(tmp_path, secret, local, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", f"file://{tmp_path}/shared")
    program = (
        "from dovetail import cache; from tests.cache.samples import KEY; cache.store(KEY, b'x')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    local.clear()
    assert cache.lookup(KEY) == Hit(b"x", "remote")


def test_a_forked_child_has_a_writer_of_its_own(tmp_path, secret, local, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", f"file://{tmp_path}/shared")
    cache.store(KEY, b"parent")
    remote.flush()
    child = os.fork()
    if not child:
        cache.store(key(graph="child"), b"child")
        remote.flush()
        os._exit(0)
    os.waitpid(child, 0)
    local.clear()
    assert cache.lookup(key(graph="child")) == Hit(b"child", "remote")


def test_the_folder_is_asked_first(server, secret, local):
    cache.store(KEY, b"x")
    assert cache.lookup(KEY) == Hit(b"x", "local")
    assert server.gets == 0


def test_a_remote_hit_works_without_a_folder(server, secret, local, tmp_path):
    filled(server, secret, local)
    path_of(local).parent.chmod(0o777)
    with pytest.warns(CacheWarning, match="may be written by others") as warned:
        assert cache.lookup(KEY) == Hit(b"payload", "remote")
    assert len(warned) == 2, "one for reading, one for keeping it"


# ---- what is not believed ------------------------------------------------------------------


def refused(server, local):
    """A miss, one warning, nothing asked for a while; storing the key again puts it right."""
    with pytest.warns(CacheWarning, match=r"test://host, local only: ") as warned:
        assert type(cache.lookup(KEY)) is Miss
    assert len(warned) == 1
    gets = server.gets
    assert type(cache.lookup(KEY)) is Miss
    assert server.gets == gets
    cache.store(KEY, b"payload")
    on_another_machine(local)
    remote.forget()  # a later process
    assert cache.lookup(KEY) == Hit(b"payload", "remote")
    return str(warned[0].message)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 60, -1])
def test_a_truncated_entry_is_refused(server, secret, local, length):
    name = filled(server, secret, local)
    server.held[name] = server.held[name][:length]
    refused(server, local)


def test_no_flipped_bit_is_believed(server, secret, local):
    data = server.held[filled(server, secret, local)]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(entry.Damaged):
            seal.unseal(secret, KEY.digest, bytes(flipped))
    assert seal.unseal(secret, KEY.digest, data)


def test_garbage_is_refused(server, secret, local):
    server.held[filled(server, secret, local)] = os.urandom(5000)
    refused(server, local)


def test_an_entry_of_another_secret_is_refused(server, secret, local):
    name = filled(server, secret, local)
    pieces = entry.encode(KEY, b"forged")
    server.held[name] = seal.seal(bytes(32), KEY.digest, pieces)
    assert "not written with this key (DOVETAIL_CACHE_KEY)" in refused(server, local)


def test_an_entry_without_a_seal_is_refused(server, secret, local):
    name = filled(server, secret, local)
    server.held[name] = b"".join(entry.encode(KEY, b"forged"))
    refused(server, local)


def test_the_entry_of_another_key_is_refused_under_this_name(server, secret, local):
    name = filled(server, secret, local)
    other = key(graph="other")
    cache.store(other, b"another's")
    remote.flush()
    server.held[name] = server.held[seal.name_of(secret, other.digest)]
    refused(server, local)


def test_an_endless_entry_is_refused(server, secret, local, monkeypatch):
    name = filled(server, secret, local)
    monkeypatch.setattr(remote, "LARGEST", 5000)
    server.held[name] = bytes(1_000_000)
    assert "more than 5,000 bytes" in refused(server, local)


def test_an_authentic_entry_of_another_format_is_a_miss(server, secret, local):
    """As a newer dovetail with the same secret may leave it."""
    name = filled(server, secret, local)
    server.held[name] = seal.seal(secret, KEY.digest, [b"something new"])
    assert type(cache.lookup(KEY)) is Miss


def test_users_with_different_secrets_do_not_meet(server, secret, local, tmp_path):
    filled(server, secret, local)
    (tmp_path / "cache.key").write_text("00" * 32)
    remote.forget()
    assert type(cache.lookup(KEY)) is Miss, "and no warning"


# ---- the key -------------------------------------------------------------------------------


def test_without_a_key_nothing_remote_is_touched(server, secret, local, monkeypatch):
    filled(server, secret, local)
    monkeypatch.delenv("DOVETAIL_CACHE_KEY")
    asked = (server.gets, server.puts)
    with pytest.warns(
        CacheWarning, match=r"test://host is not used.*dovetail cache new-key"
    ) as warned:
        use()
    assert len(warned) == 1
    assert (server.gets, server.puts) == asked


@pytest.mark.parametrize("text", ["", "5e" * 31, "5e" * 33, "xy" * 32, "\0", "é" * 64])
def test_a_key_file_holds_64_hex_digits(tmp_path, text):
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidKey, match="64 hex digits"):
        seal.read_secret(str(path))


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o666])
def test_a_key_file_that_others_can_use_is_refused(server, secret, tmp_path, mode):
    (tmp_path / "cache.key").chmod(mode)
    with pytest.warns(CacheWarning, match="chmod 600 it"):
        cache.lookup(KEY)
    assert server.gets == 0


def test_a_missing_key_file_is_named(server, monkeypatch, secret):
    monkeypatch.setenv("DOVETAIL_CACHE_KEY", "/nowhere/cache.key")
    with pytest.warns(CacheWarning, match="cannot read /nowhere/cache.key"):
        cache.lookup(KEY)


# ---- what fails ----------------------------------------------------------------------------


def test_the_password_is_shown_to_nobody(server, monkeypatch, secret):
    def connect(url):
        raise OSError(f"cannot reach {url}")

    monkeypatch.setattr(remote, "connect", connect)
    with pytest.warns(CacheWarning, match="cannot reach test://host") as warned:
        cache.lookup(KEY)
    assert "password" not in str(warned[0].message)
    assert remote.shown("redis://:password@host:6379/0") == "redis://host:6379"
    assert remote.shown("unix://a:b@/run/redis.sock?db=1") == "unix://"
    assert remote.shown("s3://bucket/folder") == "s3://bucket"


@pytest.mark.parametrize(
    ("module", "url"), [("redis", "redis://localhost"), ("fsspec.core", "s3://bucket")]
)
def test_a_missing_package_is_named(monkeypatch, secret, module, url):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", url)
    with pytest.warns(CacheWarning, match=rf"pip install 'dovetail\[{module.split('.')[0]}\]'"):
        assert type(cache.lookup(KEY)) is Miss


def test_an_unknown_kind_of_url_costs_one_warning(monkeypatch, secret):
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", "nosuch://place")
    with pytest.warns(CacheWarning, match="nosuch://place, local only: ") as warned:
        use()
    assert len(warned) == 1
    assert cache.lookup(KEY) == Hit(b"x", "local")


def test_a_server_that_hangs_is_left_alone(server, monkeypatch, local):
    never = threading.Event()
    monkeypatch.setattr(remote, "_FIRST_DEADLINE", 0.1)
    monkeypatch.setattr(server, "get", lambda name, limit: never.wait())
    with pytest.warns(CacheWarning, match=r"TimeoutError: no answer within 0.1 s") as warned:
        cache.lookup(KEY)
    monkeypatch.setattr(server, "get", None)  # would be a second warning
    assert type(cache.lookup(KEY)) is Miss
    assert len(warned) == 1
    never.set()


def test_after_a_rest_the_server_is_asked_again(server, secret, local, monkeypatch):
    filled(server, secret, local)
    working = server.get
    clock = [1000.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(server, "get", lambda name, limit: 1 / 0)
    with pytest.warns(CacheWarning, match="ZeroDivisionError"):
        cache.lookup(KEY)
    monkeypatch.setattr(server, "get", working)
    clock[0] += 29
    assert type(cache.lookup(KEY)) is Miss
    clock[0] += 2
    assert cache.lookup(KEY) == Hit(b"payload", "remote")


def test_stores_do_not_wait_and_the_queue_is_bounded(server, secret, monkeypatch):
    go = threading.Event()
    put = server.put
    monkeypatch.setattr(server, "put", lambda name, data: (go.wait(), put(name, data)))
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for i in range(200):
        cache.store(key(graph=str(i)), b"x")
    assert server.puts == 0
    assert cache.stats().stored == 200
    go.set()
    remote.flush(60)
    assert 64 <= server.puts <= 65


def test_the_queues_bytes_are_bounded(server, secret, monkeypatch):
    go = threading.Event()
    put = server.put
    monkeypatch.setattr(server, "put", lambda name, data: (go.wait(), put(name, data)))
    monkeypatch.setattr(remote, "_LARGEST_QUEUE", 2_500_000)
    for i in range(10):
        cache.store(key(graph=str(i)), bytes(1_000_000))
    go.set()
    remote.flush(60)
    assert server.puts == 2
