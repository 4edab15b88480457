"""What a code section holds: objects, each for a processor, and their functions."""

from __future__ import annotations

import struct

from dovetail.errors import InvalidArtifact

_SYMBOL_TABLE, _FUNCTION = 2, 2
_BODY = ".body"  # of the functions beside a kernel's own that do its work begins so


def objects(section: bytes) -> list[tuple[int, bytes]]:
    """Each object with the number of its processor, in order."""
    try:
        (count,) = struct.unpack_from("<I", section)
        rows = [struct.unpack_from("<2I2Q", section, 8 + 24 * n) for n in range(count)]
    except struct.error as error:
        raise InvalidArtifact(f"code section: {error}") from None
    return [(number, section[at : at + size]) for number, _, at, size in rows]


def functions(section: bytes) -> dict[int, dict[str, int]]:
    """Processor (its number) → kernel → bytes of code."""
    found: dict[int, dict[str, int]] = {}
    try:
        for number, code in objects(section):
            held = found.setdefault(number, {})
            found[number] = {**_symbols(code), **held}  # the first that has a kernel counts
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise InvalidArtifact(f"code section: {error}") from None
    return found


def _symbols(code: bytes) -> dict[str, int]:
    """The functions of an ELF object, a kernel's own and those of its body taken together."""
    (start,) = struct.unpack_from("<Q", code, 40)
    (count,) = struct.unpack_from("<H", code, 60)
    sections = [struct.unpack_from("<2I4Q2I2Q", code, start + 64 * n) for n in range(count)]
    found: dict[str, int] = {}
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _SYMBOL_TABLE or link >= count:
            continue
        names = sections[link][4]
        for at in range(offset, offset + size, 24):
            name, info, _, _, _, length = struct.unpack_from("<I2BH2Q", code, at)
            if info & 15 == _FUNCTION:
                end = code.index(b"\0", names + name)
                kernel = code[names + name : end].decode().partition(_BODY)[0]
                found[kernel] = found.get(kernel, 0) + length
    return found
