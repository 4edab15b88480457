"""Where a remote cache lies: Redis, or whatever fsspec has a URL for. Imported when configured."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

# Seconds, for each wait of a connection; ``remote.py`` bounds a whole request.
_CONNECT, _ANSWER = 0.5, 1.0


class Server(Protocol):
    """Bytes by name. Every method may raise anything, or hang."""

    def get(self, name: str, limit: int) -> bytes | None:
        """What lies there, or its first bytes, more than ``limit`` of them; None: nothing."""

    def put(self, name: str, data: bytes) -> None:
        """Replace what lies there."""

    def close(self) -> None:
        """Break off what is under way."""


def load_client(url: str) -> None:
    """Import what speaks to the server of a URL; ``ImportError`` says what to install.

    In the thread that asks: at the end of a process a background thread can import no more.
    """
    package, module = ("redis", "redis") if _is_redis(url) else ("fsspec", "fsspec.core")
    try:
        import_module(module)
    except ImportError:
        raise ImportError(f"pip install 'dovetail[{package}]'") from None


def connect(url: str) -> Server:
    """The server of a URL."""
    return RedisServer(url) if _is_redis(url) else FsspecServer(url)


def _is_redis(url: str) -> bool:
    return url.split("://", 1)[0] in ("redis", "rediss", "unix")


class RedisServer:
    """Values of a Redis database, whose own settings say what goes when it is full."""

    def __init__(self, url: str) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._client: Any = redis.Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT,
            socket_timeout=_ANSWER,
            retry=Retry(NoBackoff(), 0),
            protocol=2,  # the third lets a server send what nobody asked for
        )

    def get(self, name: str, limit: int) -> bytes | None:
        """A value, which Redis gives as empty where there is none."""
        data = self._client.getrange(f"dovetail:{name}", 0, limit)
        if not isinstance(data, bytes):
            raise TypeError(f"the server answered with {type(data).__name__}, not bytes")
        return data or None

    def put(self, name: str, data: bytes) -> None:
        """Set a value."""
        self._client.set(f"dovetail:{name}", data)

    def close(self) -> None:
        """Close the connections."""
        self._client.connection_pool.disconnect()


class FsspecServer:
    """Files below a URL of any file system or object store that fsspec has."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        # An instance of our own: a transaction on a shared one would take in others' writes.
        self._files, self._root = url_to_fs(url, skip_instance_cache=True)

    def get(self, name: str, limit: int) -> bytes | None:
        """A file."""
        try:
            data = self._files.cat_file(f"{self._root}/{name}", start=0, end=limit + 1)
        except FileNotFoundError:
            return None
        return bytes(data)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, which appears whole where the file system can do that."""
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        with self._files.transaction:
            self._files.pipe_file(path, data)

    def close(self) -> None:
        """There is no way to break off a request; nobody waits for it."""
