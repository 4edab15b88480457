"""What the ``dovetail cache`` command does with the folder, beside looking up and storing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.cache.entry import EntryHeader
from dovetail.cache.folder import Untrusted
from dovetail.cache.key import Key
from dovetail.cache.local import Kept, Local
from dovetail.cache.nearest import nearest
from dovetail.cache.settings import current
from dovetail.errors import CacheUnusable, UnknownCacheEntry


def local() -> Local:
    """The folder that the settings name."""
    held = current()
    return Local(held.folder, held.size)


def entries() -> list[Kept]:
    """All entries of the folder, those used last first."""
    with usable():
        return local().entries()


def clear() -> int:
    """Remove every entry from the folder; how many there were."""
    with usable():
        return len(local().clear())


def why(digest: str | None = None) -> str:
    """What differs from the nearest entry: of the last miss, or of the entry that begins so."""
    with usable():
        if digest is not None:
            found = find(digest)
            return _explain(found.key, found.created)
        missed = local().last_miss()
        return _explain(*missed) if missed else f"{local().path} remembers no miss"


def find(prefix: str) -> EntryHeader:
    """The header of the one entry whose digest begins so."""
    digests = [kept.digest for kept in entries() if kept.digest.startswith(prefix.lower())]
    if len(digests) != 1:
        what = f"{len(digests)} entries begin" if digests else "no entry begins"
        raise UnknownCacheEntry(f"{what} with {prefix!r} in {local().path} (see dovetail cache ls)")
    header = local().header(digests[0])
    if header is None:
        raise UnknownCacheEntry(f"the entry {digests[0][:12]} in {local().path} is damaged")
    return header


def _explain(key: Key, when: float) -> str:
    """How a key differs from the nearest of the entries that there were at that time."""
    headers = [local().header(kept.digest) for kept in entries()]
    others = [header for header in headers if header and header.created <= when]
    found = nearest(key.hashes, [other.key.hashes for other in others])
    if found is None:
        return f"{key.digest[:12]}: there was no other entry to compare with"
    other = others[found]
    names = key.differs(other.key)
    label = f" ({other.label})" if other.label else ""
    intro = f"{key.digest[:12]}: the nearest entry is {other.key.digest[:12]}{label}"
    width = max(map(len, names))
    lines = [f"{intro}; {len(names)} of {len(key.parts)} parts differ:"]
    lines += (f"  {name:{width}}  {other.key.text(name)}  ->  {key.text(name)}" for name in names)
    return "\n".join(lines)


@contextmanager
def usable() -> Iterator[None]:
    """Turn what the folder is refused for into a mistake that the user reads."""
    try:
        yield
    except (OSError, Untrusted) as error:
        raise CacheUnusable(f"the cache cannot be used: {error}") from None
