"""A real redis-server, and worse ones: killed, paused, full, and some that speak nonsense."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from dovetail import cache
from dovetail.cache import Hit, Miss, remote, seal
from dovetail.errors import CacheWarning
from tests.cache.samples import KEY, key

redis = pytest.importorskip("redis", reason="pip install 'dovetail[redis]'")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not shutil.which("redis-server"), reason="apt-get install redis-server"),
]


class Running:
    """A redis-server on a port of its own."""

    def __init__(self, folder):
        while True:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            settings = f"--port {self.port} --bind 127.0.0.1 --save --appendonly no --dir {folder}"
            self.process = subprocess.Popen(
                ["redis-server", *settings.replace("--save", "--save ''").split()],
                stdout=subprocess.DEVNULL,
            )
            if self._answers():
                return

    def _answers(self):
        self.client = redis.Redis(port=self.port)
        while self.process.poll() is None:
            try:
                return self.client.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
        return False  # another process took the port

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.client.close()


@pytest.fixture
def server(tmp_path, monkeypatch, secret):
    running = Running(tmp_path)
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", f"redis://127.0.0.1:{running.port}/0")
    yield running
    remote.forget()
    running.stop()


def name_of(secret, of=KEY):
    return f"dovetail:{seal.name_of(secret, of.digest)}"


def store_and_flush(of, payload):
    cache.store(of, payload)
    remote.flush(10)


def store_and_lookup(local):
    """What a compilation does; the folder serves whatever the server does."""
    found = cache.lookup(KEY)
    store_and_flush(KEY, b"compiled")
    assert cache.lookup(KEY) == Hit(b"compiled", "local")
    local.clear()
    return found


def local_only(local, match):
    """Twice the right result, and one warning in all."""
    with pytest.warns(CacheWarning, match=match) as warned:
        found = [store_and_lookup(local) for _ in range(2)]
    assert [type(each) for each in found] == [Miss, Miss]
    assert len(warned) == 1


def test_what_one_machine_stores_another_finds(server, local):
    payload = os.urandom(3_000_000)
    store_and_flush(KEY, payload)
    local.clear()
    assert cache.lookup(KEY) == Hit(payload, "remote")
    assert cache.lookup(KEY) == Hit(payload, "local")
    assert type(cache.lookup(key(graph="other"))) is Miss


def test_a_server_that_is_killed(server, local):
    store_and_flush(KEY, b"x")
    server.process.kill()
    server.process.wait()
    local.clear()
    local_only(local, "cannot read the cache at redis://127.0.0.1")


def test_a_server_that_is_not_there(server, local):
    server.process.kill()
    server.process.wait()
    local_only(local, "cannot read the cache at redis://127.0.0.1:.*ConnectionError")


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_is_paused(server, local, connected):
    if connected:
        cache.lookup(KEY)
    server.process.send_signal(signal.SIGSTOP)
    local_only(local, "cannot read the cache at redis://127.0.0.1:.*Timeout")


def test_a_server_that_is_full_can_still_be_read(server, local):
    store_and_flush(KEY, b"payload")
    server.client.config_set("maxmemory", "1")
    with pytest.warns(CacheWarning, match="cannot write to the cache at redis.*OOM|maxmemory"):
        store_and_flush(key(graph="more"), bytes(10_000))
    local.clear()
    assert cache.lookup(KEY) == Hit(b"payload", "remote")


def test_a_server_that_wants_a_password(server, local):
    server.client.config_set("requirepass", "secret")
    local_only(local, "cannot read the cache at redis.*[Aa]uthentication")


def test_garbage_in_an_entry_is_refused_and_replaced(server, local, secret):
    server.client.set(name_of(secret), os.urandom(10_000))
    with pytest.warns(CacheWarning, match="was not written with this key"):
        assert type(store_and_lookup(local)) is Miss
    remote.forget()  # a later process
    assert cache.lookup(KEY) == Hit(b"compiled", "remote")


def test_an_entry_that_is_no_string_is_refused_and_replaced(server, local, secret):
    server.client.lpush(name_of(secret), "x")
    with pytest.warns(CacheWarning, match="WRONGTYPE"):
        assert type(store_and_lookup(local)) is Miss
    remote.forget()
    assert cache.lookup(KEY) == Hit(b"compiled", "remote")


def test_the_entry_of_another_key_is_refused(server, local, secret):
    other = key(graph="other")
    store_and_flush(other, b"another's")
    server.client.copy(name_of(secret, other), name_of(secret))
    with pytest.warns(CacheWarning, match="was not written with this key"):
        assert type(cache.lookup(KEY)) is Miss


# ---- servers that speak nonsense -----------------------------------------------------------


def greet(connection):
    """Agree to whatever a client says first, until it asks for an entry."""
    while b"GETRANGE" not in (heard := connection.recv(65536)):
        if not heard:
            return
        connection.sendall(b"+OK\r\n" * heard.count(b"*"))


def drip(connection):
    connection.sendall(b"$1000000\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def flood(connection):
    connection.sendall(b"$99999999999999\r\n")
    while True:
        connection.sendall(bytes(1 << 16))
        time.sleep(0.005)


def say(data):
    return lambda connection: connection.sendall(data)


# What the server does, and what the warning says.
ANSWERS = {
    "nothing": (lambda connection: connection.close(), "Connection closed"),
    "noise": (say(b"noise\r\n"), "Protocol Error: b'noise'"),
    "negative": (say(b"$-7\r\n"), "Timeout reading from socket"),
    "a number": (say(b":5\r\n"), "answered with int, not bytes"),
    "a list": (say(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"), "answered with list, not bytes"),
    "an error": (say(b"-LOADING soon\r\n"), "BusyLoadingError: soon"),
    "half": (lambda connection: (say(b"$9\r\nhalf")(connection), connection.close()), "closed"),
    "drops": (drip, "no answer within 1.5 s"),
    "a flood": (flood, "no answer within 1.5 s"),
}


@pytest.fixture(params=ANSWERS)
def nonsense(request, monkeypatch, secret):
    """A server that agrees to connect, and then answers like this; what the warning says."""
    answer, said = ANSWERS[request.param]
    monkeypatch.setattr(remote, "_FIRST_DEADLINE", 1.5)

    def serve(connection):
        try:
            greet(connection)
            answer(connection)
        except OSError:
            pass  # the client has left

    def accept():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        port = listening.getsockname()[1]
        monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", f"redis://127.0.0.1:{port}/0")
        yield said
        remote.forget()


def test_a_server_that_speaks_nonsense(nonsense, local):
    match = f"cannot read the cache at redis://127.0.0.1:.*{nonsense}"
    with pytest.warns(CacheWarning, match=match) as warned:
        found = [cache.lookup(KEY) for _ in range(2)]
    assert [type(each) for each in found] == [Miss, Miss]
    assert len(warned) == 1
    for thread in threading.enumerate():
        if thread.name == "dovetail cache reader":
            thread.join(10)
            assert not thread.is_alive(), "its connection was closed"
