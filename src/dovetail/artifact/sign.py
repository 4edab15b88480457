"""Signing artifacts: Ed25519 over the digest of everything a file holds."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.errors import ArtifactNotFound, InvalidKey
from dovetail.file import container


def signature_section(digest: bytes, key: bytes) -> container.Section:
    """The signature section: the public key, then the signature of ``digest``."""
    from dovetail import _native

    public = _native.public_key(key)
    return container.section(container.SIGNATURE, public + _native.sign(key, digest))


def new_key() -> bytes:
    """A private key: 32 random bytes."""
    return os.urandom(32)


def read_private_key(path: str | os.PathLike[str]) -> bytes:
    """A private key from a file of 64 hex digits."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidKey(f"cannot read a key from {os.fspath(path)!r}: {error}") from None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidKey(f"{os.fspath(path)!r} holds no private key: 64 hex digits are expected")
    return key


def sign_file(path: str | os.PathLike[str], key: bytes) -> None:
    """Sign a file in place (it is replaced as a whole); an older signature goes."""
    source = Path(path)
    try:
        data = source.read_bytes()
        with source.open("rb") as file:
            header = container.read_header(file)
    except OSError as error:
        raise ArtifactNotFound(f"cannot read {source}: {error.strerror}") from None
    sections = [
        container.Section(e.kind, [memoryview(data)[e.offset : e.offset + e.size]], e.required)
        for e in header.entries
        if e.kind != container.SIGNATURE
    ]
    layout, ordered = container.lay_out(
        sections, header.features, target=header.target, version=header.version
    )
    signed = [*ordered, signature_section(container.content_digest(layout), key)]
    layout, ordered = container.lay_out(
        signed, header.features, target=header.target, version=header.version
    )
    container.write_file(path, container.chunks(layout, ordered))
