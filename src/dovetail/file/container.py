"""The container of a .dvt file: header, section table, sections. See artifact/SPEC.md.

A process that only loads a file imports this too, so what writing alone needs is imported there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dovetail.errors import ArtifactNotFound, InvalidArtifact

MAGIC = b"\x89DVT\r\n\x1a\n"
MAJOR, MINOR = 1, 6
HEADER = struct.Struct("<8sHHIQIIQQ32s32s16s")
ENTRY = struct.Struct("<IIQQ32sQ")
ALIGNMENT, PAGE = 64, 4096
LEAF = 65536  # bytes of the constants that one leaf of their digest covers
_TREES_SINCE = (1, 3)  # before, the digest of the constants was as that of any section

MANIFEST, STRINGS, SIZES, BUFFERS, PROGRAM, GUARDS, KERNELS = range(1, 8)
HOST_CALLS, CODE, BLOBS, CONSTANTS, DEBUG, SIGNATURE, KERNEL_IR, DEVICES = range(8, 16)
LAYOUTS, OPERANDS = range(16, 18)
SECTION_NAMES = {
    MANIFEST: "manifest",
    STRINGS: "strings",
    SIZES: "sizes",
    BUFFERS: "buffers",
    PROGRAM: "program",
    GUARDS: "guards",
    KERNELS: "kernels",
    HOST_CALLS: "host calls",
    CODE: "code",
    BLOBS: "vendor blobs",
    CONSTANTS: "constants",
    DEBUG: "debug",
    SIGNATURE: "signature",
    KERNEL_IR: "kernel IR",
    DEVICES: "devices",
    LAYOUTS: "layouts",
    OPERANDS: "operands",
}
FEATURE_HOST, FEATURE_CODE, FEATURE_DEVICES, FEATURE_BACKENDS = 1, 2, 4, 8
_OPTIONAL = (MANIFEST, DEBUG, SIGNATURE, KERNEL_IR, LAYOUTS)
# What comes last in a file: constants, which are large, so that the rest is one small read.
_DEVICES = (DEVICES, LAYOUTS, OPERANDS)
_ORDER = (*range(MANIFEST, CONSTANTS), KERNEL_IR, *_DEVICES, DEBUG, SIGNATURE, CONSTANTS)


class Section(NamedTuple):
    """A section: its kind, and its bytes in pieces, so that large ones are never joined."""

    kind: int
    pieces: Sequence[bytes | memoryview]
    required: bool = True

    @property
    def size(self) -> int:
        """The bytes of all pieces."""
        return sum(len(piece) for piece in self.pieces)

    def digest(self, version: tuple[int, int] = (MAJOR, MINOR)) -> bytes:
        """SHA-256 of the contents; of constants, of the digests of their leaves."""
        from hashlib import sha256

        if self.kind == CONSTANTS and version >= _TREES_SINCE:
            leaves = b"".join(sha256(leaf).digest() for leaf in self._leaves())
            return sha256(leaves).digest()
        digest = sha256()
        for piece in self.pieces:
            digest.update(piece)
        return digest.digest()

    def _leaves(self) -> Iterator[bytes | memoryview]:
        """The contents in leaves, copying only those that span several pieces."""
        held = bytearray()
        for piece in self.pieces:
            view = memoryview(piece).cast("B")
            if held:
                missing = LEAF - len(held)
                held += view[:missing]
                view = view[missing:]
                if len(held) == LEAF:
                    yield bytes(held)
                    held.clear()
            whole = len(view) // LEAF * LEAF
            for start in range(0, whole, LEAF):
                yield view[start : start + LEAF]
            held += view[whole:]
        if held:
            yield bytes(held)


def section(kind: int, data: bytes) -> Section:
    """A section of one piece; kinds that a reader may skip are marked so."""
    return Section(kind, [data], kind not in _OPTIONAL)


class SectionEntry(NamedTuple):
    """A row of the section table."""

    kind: int
    required: bool
    offset: int
    size: int
    digest: bytes

    @property
    def name(self) -> str:
        """What the section is called."""
        return SECTION_NAMES.get(self.kind, f"kind {self.kind}")


class FileLayout(NamedTuple):
    """Header and table of a file to be written, and where its sections go."""

    head: bytes
    entries: tuple[SectionEntry, ...]
    size: int


def lay_out(
    sections: Iterable[Section],
    features: int,
    *,
    target: bytes = bytes(32),
    version: tuple[int, int] = (MAJOR, MINOR),
) -> tuple[FileLayout, list[Section]]:
    """Place sections one after the other, each aligned, and compute every digest."""
    ordered = sorted(sections, key=_rank)
    end = HEADER.size + ENTRY.size * len(ordered)
    entries = []
    for item in ordered:
        align = PAGE if item.kind == CONSTANTS else ALIGNMENT
        start = -(-end // align) * align
        entries.append(
            SectionEntry(item.kind, item.required, start, item.size, item.digest(version))
        )
        end = start + item.size
    return FileLayout(_head(entries, features, target, version, end), tuple(entries), end), ordered


def _rank(item: Section) -> int:
    return _ORDER.index(item.kind) if item.kind in _ORDER else _ORDER.index(DEBUG)


def _head(
    entries: Sequence[SectionEntry],
    features: int,
    target: bytes,
    version: tuple[int, int],
    size: int,
) -> bytes:
    from hashlib import sha256

    table = b"".join(
        ENTRY.pack(e.kind, int(e.required), e.offset, e.size, e.digest, 0) for e in entries
    )

    def header(root: bytes) -> bytes:
        return HEADER.pack(
            MAGIC, *version, HEADER.size, size, len(entries), 0, features, 0, target, root, b""
        )

    root = sha256(header(bytes(32)) + table).digest()
    return header(root) + table


def content_digest(layout: FileLayout) -> bytes:
    """What a signature signs: version, features, target and every section but the signature."""
    from hashlib import sha256

    fields = HEADER.unpack_from(layout.head)
    text = struct.pack("<HHQ", fields[1], fields[2], fields[7]) + fields[9]
    for entry in layout.entries:
        if entry.kind != SIGNATURE:
            text += struct.pack("<IIQ", entry.kind, int(entry.required), entry.size) + entry.digest
    return sha256(text).digest()


def chunks(layout: FileLayout, sections: Sequence[Section]) -> Iterator[bytes | memoryview]:
    """The file's bytes from front to back."""
    yield layout.head
    end = len(layout.head)
    for entry, item in zip(layout.entries, sections, strict=True):
        yield bytes(entry.offset - end)
        yield from item.pieces
        end = entry.offset + entry.size


def write_file(
    path: str | os.PathLike[str], parts: Iterable[bytes | memoryview], mode: int = 0o644
) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one, never half of it."""
    from tempfile import mkstemp

    target = Path(path)
    try:
        handle, name = mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise ArtifactNotFound(f"cannot write {target}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise ArtifactNotFound(f"cannot write {target}: {error.strerror}") from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class FileHeader(NamedTuple):
    """What the first bytes of a file say, for ``inspect`` and for signing."""

    version: tuple[int, int]
    size: int
    features: int
    target: bytes
    entries: tuple[SectionEntry, ...]


def read_header(file: BinaryIO) -> FileHeader:
    """Header and table; the C verifier is what decides whether a file is sound."""
    data = file.read(HEADER.size)
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise InvalidArtifact("not an artifact: no DVT signature")
    _, major, minor, _, size, count, _, features, _, target, _, _ = HEADER.unpack(data)
    table = file.read(ENTRY.size * min(count, 64))
    if len(table) < ENTRY.size * count:
        raise InvalidArtifact("the section table ends early")
    rows = (ENTRY.unpack_from(table, i * ENTRY.size) for i in range(count))
    entries = tuple(SectionEntry(k, bool(r), at, n, digest) for k, r, at, n, digest, _ in rows)
    return FileHeader((major, minor), size, features, target, entries)
