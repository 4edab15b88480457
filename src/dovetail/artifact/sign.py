"""Signing artifacts: Ed25519 over the digest of everything a file holds."""

from __future__ import annotations

import io
import os
from pathlib import Path

from dovetail.errors import ArtifactNotFound, InvalidArtifact, InvalidKey
from dovetail.file import container
from dovetail.runtime.loaded import INSPECT, open_native
from dovetail.runtime.trust import parse_keys

# What is signed begins with this, so that a signature of something else is never one of a file.
CONTEXT = b"dovetail artifact signature v1\0"
# A private key: its 32 bytes, the text of a key file, or the path of one.
Key = bytes | str | os.PathLike[str]


def signature_section(digest: bytes, key: bytes) -> container.Section:
    """The signature section: the public key, then the signature of ``digest`` in its context."""
    from dovetail import _native

    public = _native.public_key(key)
    return container.section(container.SIGNATURE, public + _native.sign(key, CONTEXT + digest))


def new_key() -> bytes:
    """A private key: 32 random bytes."""
    return os.urandom(32)


def private_key(key: Key) -> bytes:
    """The 32 bytes of a private key, however it is given: see ``Key``."""
    if not isinstance(key, bytes):
        return read_private_key(key)
    return key if len(key) == 32 else _parse_private(key, "the key given")


def read_private_key(path: str | os.PathLike[str]) -> bytes:
    """A private key from a file of 64 hex digits, as ``dovetail sign --new-key`` writes it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidKey(f"cannot read a key from {os.fspath(path)!r}: {error.strerror}") from None
    return _parse_private(data, repr(os.fspath(path)))


def _parse_private(data: bytes, where: str) -> bytes:
    try:
        keys = parse_keys(data.decode("ascii"), where)
    except (InvalidKey, UnicodeDecodeError):
        keys = []
    if len(keys) != 1:
        raise InvalidKey(f"{where} holds no private key: 64 hex digits are expected")
    return keys[0]


def sign_file(path: str | os.PathLike[str], key: Key) -> None:
    """Sign a file in place (it is replaced as a whole); an older signature goes.

    Only what is sound is signed: the C runtime verifies the file, and its digest of the contents
    must be that of the bytes that are written.
    """
    source, seed = Path(path), private_key(key)
    native = open_native(os.fspath(path), flags=INSPECT)
    try:
        with source.open("rb") as file:
            data, mode = file.read(), os.fstat(file.fileno()).st_mode & 0o777
    except OSError as error:
        raise ArtifactNotFound(f"cannot read {source}: {error.strerror}") from None
    header = container.read_header(io.BytesIO(data))
    sections = [
        container.Section(e.kind, [memoryview(data)[e.offset : e.offset + e.size]], e.required)
        for e in header.entries
        if e.kind != container.SIGNATURE
    ]
    layout, ordered = container.lay_out(
        sections, header.features, target=header.target, version=header.version
    )
    digest = container.content_digest(layout)
    if digest != native.digest():
        raise InvalidArtifact(f"{source} is damaged, or changed while it was read: not signed")
    layout, ordered = container.lay_out(
        [*ordered, signature_section(digest, seed)],
        header.features,
        target=header.target,
        version=header.version,
    )
    container.write_file(path, container.chunks(layout, ordered), mode)
