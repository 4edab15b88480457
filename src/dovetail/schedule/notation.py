"""How decisions are written, a line each, and read: what the texts of schedules are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class Notation(NamedTuple):
    """How what was decided is written behind its word, and read."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def pairs(read: Callable[[str], Any], between: str = " by ") -> Notation:
    """Names, each with a value."""

    def parse(text: str) -> tuple[Any, ...]:
        listed = [part.split(between) for part in text.split(", ")]
        return tuple((name, read(value)) for name, value in listed)

    return Notation(lambda listed: ", ".join(f"{n}{between}{v}" for n, v in listed), parse)


def _read_nothing(text: str) -> bool:
    if text:
        raise ValueError(f"unexpected {text!r}")
    return True


COUNT, WORD = Notation(str, int), Notation(lambda _: "", _read_nothing)
NAMES = Notation(", ".join, lambda text: tuple(text.split(", ")))


def written(decided: Mapping[str, Any], forms: Mapping[str, Notation]) -> Iterator[str]:
    """A line a decision; what is not decided is not there."""
    for word, value in decided.items():
        if value:
            yield f"  {word} {forms[word].write(value)}".rstrip()
