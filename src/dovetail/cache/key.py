"""What a cached compilation depends on: a list of named, hashed parts.

The parts stay apart in the key, so that a miss can say which of them differs from the nearest
entry. Two keys are equal where their digests are; the texts are for people alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dovetail.cache.nearest import differing

# Enters every digest: a new format of keys or entries finds no old ones.
FORMAT = 1
# In characters; texts are stored in each entry and read by people.
LONGEST_TEXT = 200


@dataclass(frozen=True, eq=False)
class Key:
    """The parts of a key in the caller's order: name, SHA-256 in hex, short text or ``""``."""

    parts: tuple[tuple[str, str, str], ...]

    @staticmethod
    def of(parts: Mapping[str, str | bytes], texts: Mapping[str, str] | None = None) -> Key:
        """The key of these parts; ``texts`` has what a person should read for some of them.

        Without a text, a part that is a short string of one line is its own.
        """
        texts = texts or {}
        if unknown := [name for name in texts if name not in parts]:
            raise ValueError(f"texts for parts that the key does not have: {', '.join(unknown)}")
        return Key(
            tuple(
                (_checked(name), _hash(part), _text(part, texts.get(name)))
                for name, part in parts.items()
            )
        )

    def with_part(self, name: str, part: str) -> Key:
        """This key and one more part."""
        return Key((*self.parts, *Key.of({name: part}).parts))

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex over the format and every part's name and hash."""
        return hashlib.sha256("".join(self._lines()).encode()).hexdigest()

    @property
    def hashes(self) -> dict[str, str]:
        """The parts' hashes by name."""
        return {name: hashed for name, hashed, _ in self.parts}

    def differs(self, other: Key) -> list[str]:
        """The names of the parts that differ, those that only one key has among them."""
        return differing(self.hashes, other.hashes)

    def text(self, name: str) -> str:
        """What a person reads for a part: its text, else the start of its hash, else ``absent``."""
        found = next((part for part in self.parts if part[0] == name), None)
        return (found[2] or found[1][:12]) if found else "absent"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return f"{self.digest[:12]} ({', '.join(name for name, _, _ in self.parts)})"

    def _lines(self) -> Iterator[str]:
        # A name holds no line break and a hash has a fixed length: no two keys give one text.
        yield f"dovetail cache key {FORMAT}\n"
        for name, hashed, _ in self.parts:
            yield f"{hashed} {name}\n"


def _checked(name: str) -> str:
    if not name or not name.isprintable():
        raise ValueError(f"a part of a key has a name in printable characters, not {name!r}")
    return name


def _hash(part: str | bytes) -> str:
    return hashlib.sha256(
        part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
    ).hexdigest()


def _text(part: str | bytes, given: str | None) -> str:
    if given is None:
        own = isinstance(part, str) and len(part) <= LONGEST_TEXT and part.isprintable()
        return str(part) if own else ""
    text = " ".join(given.split())
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
