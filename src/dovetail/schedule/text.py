"""Schedules as text, both ways: ``parse_schedule(print_schedule(s)) == s``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dovetail.errors import InvalidSchedule
from dovetail.schedule.schedule import (
    BlockSchedule,
    LoopSchedule,
    ProductTile,
    Schedule,
    Steps,
    Tile,
)

Pairs = tuple[tuple[str, int], ...]


def print_schedule(schedule: Schedule | BlockSchedule) -> str:
    """A line a decision; what is not decided is not there."""
    if isinstance(schedule, BlockSchedule):
        return _print_blocks(schedule)
    s, tile = schedule, schedule.tile
    lines = [f"schedule {s.target} {{"]
    lines.append("  scalar" if s.vector is None else f"  vector {s.vector} by {s.lanes}")
    if s.steps is not None:
        lines.append(f"  block {s.block}")
        lines.append(f"  steps {_steps(s.steps)}")
    if tile is not None:
        lines.append(f"  tile {tile.across} by {tile.rows}, {tile.along} by {tile.columns}")
        if tile.transposed:
            lines.append(f"  transposed {_pairs(tile.transposed)}")
    if s.product is not None:
        lines.append(f"  product {_product(s.product)}")
    if s.calls:
        lines.append(f"  calls {', '.join(f'{op} of {dtype}' for op, dtype in s.calls)}")
    if s.erf_plus_one:
        lines.append(f"  erf_plus_one {', '.join(s.erf_plus_one)}")
    lines.append(f"  cost {s.cost} of {s.grain}")
    for loop in s.loops:
        lines += ["  loop {", *(f"    {line}" for line in _loop(loop)), "  }"]
    return "\n".join([*lines, "}", ""])


def _print_blocks(s: BlockSchedule) -> str:
    lines = [f"schedule {s.target} {{"]
    lines.append(f"  rows {s.rows}, columns {s.columns}" if s.columns else f"  rows {s.rows}")
    lines.append(f"  warps {s.warps}")
    if s.persistent:
        lines.append("  persistent")
    if s.along:
        lines.append(f"  along {', '.join(s.along)}")
    lines.append(f"  places {64 if s.wide else 32}")
    return "\n".join([*lines, f"  picoseconds {s.cost}", "}", ""])


def _loop(loop: LoopSchedule) -> Iterator[str]:
    if loop.steps is not None:
        yield f"steps {_steps(loop.steps)}"
    if loop.chunk:
        yield f"chunk {loop.chunk}"
    if loop.exact:
        yield "exact"
    if loop.multiply_adds:
        yield f"multiply_adds {', '.join(loop.multiply_adds)}"
    if loop.scans:
        yield f"scans {_pairs(loop.scans)}"
    if loop.interleaved:
        yield f"interleaved {', '.join(' '.join(map(str, group)) for group in loop.interleaved)}"


def _product(p: ProductTile) -> str:
    heights, packed = " or ".join(map(str, p.heights)), " packed" if p.packed else ""
    sums = f"unroll {p.unroll} chunk {p.chunk} depth {p.depth}"
    return f"{p.rows} by {heights} of {p.block}, {p.vectors} vectors, {sums}{packed}"


def _steps(steps: Steps) -> str:
    return f"{' '.join(map(str, steps.counts))} masked {steps.masked}".strip()


def _pairs(pairs: Pairs) -> str:
    return ", ".join(f"{name} by {count}" for name, count in pairs)


def parse_schedule(text: str) -> Schedule | BlockSchedule:
    """The schedule that ``print_schedule`` wrote; InvalidSchedule for anything else."""
    lines = iter([line.strip() for line in text.splitlines() if line.strip()])
    try:
        word, target, brace = next(lines).split()
        if (word, brace) != ("schedule", "{"):
            raise ValueError(f"it starts with {word!r}")
        found, loops = _block(lines, _SCHEDULE)
        if next(lines, None) is not None:
            raise ValueError("something follows")
        if "rows" in found and not loops:
            return BlockSchedule(target=target, **found)
        if "tile" in found:
            found["tile"] = replace(found["tile"], transposed=found.pop("transposed", ()))
        return Schedule(target=target, loops=tuple(loops), **found)
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise InvalidSchedule(f"this text is no schedule: {error}") from None


Reader = Callable[[str], dict[str, Any]]


def _block(
    lines: Iterator[str], readers: Mapping[str, Reader]
) -> tuple[dict[str, Any], list[LoopSchedule]]:
    """The decisions up to a closing brace, and the loops among them."""
    found: dict[str, Any] = {}
    loops: list[LoopSchedule] = []
    while (line := next(lines)) != "}":
        if line == "loop {" and readers is _SCHEDULE:
            loops.append(LoopSchedule(**_block(lines, _LOOP)[0]))
            continue
        word, _, rest = line.partition(" ")
        if word not in readers:
            raise ValueError(f"unknown decision {word!r}")
        new = readers[word](rest)
        if new.keys() & found.keys():
            raise ValueError(f"{word} twice")
        found |= new
    return found, loops


def _parse_steps(text: str) -> Steps:
    counts, found, masked = text.rpartition("masked ")
    if not found:
        raise ValueError(f"cannot read the steps {text!r}")
    return Steps(tuple(map(int, counts.split())), masked)


def _parse_pairs(text: str, between: str = " by ") -> list[list[str]]:
    pairs = [part.split(between) for part in text.split(", ")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"cannot read {text!r}")
    return pairs


def _counted(text: str) -> Pairs:
    return tuple((name, int(count)) for name, count in _parse_pairs(text))


def _tile(text: str) -> Tile:
    (across, rows), (along, columns) = _parse_pairs(text)
    return Tile(across, along, int(rows), int(columns))


_PRODUCT = re.compile(
    r"(\w+) by (\d+(?: or \d+)*) of (\d+), (\d+) vectors, "
    r"unroll (\d+) chunk (\d+) depth (\d+)( packed)?"
)


def _parse_product(text: str) -> ProductTile:
    found = _PRODUCT.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read {text!r}")
    rows, heights, *numbers, packed = found.groups()
    block, vectors, unroll, chunk, depth = map(int, numbers)
    tall = tuple(map(int, heights.split(" or ")))
    return ProductTile(rows, tall, vectors, block, unroll, chunk, depth, packed is not None)


def _vector(text: str) -> dict[str, Any]:
    ((vector, lanes),) = _parse_pairs(text)
    return {"vector": vector, "lanes": int(lanes)}


def _cost(text: str) -> dict[str, Any]:
    ((cost, grain),) = _parse_pairs(text, " of ")
    return {"cost": int(cost), "grain": int(grain)}


def _rows(text: str) -> dict[str, Any]:
    rows, columns, count = text.partition(", columns ")
    return {"rows": int(rows), "columns": int(count) if columns else 0}


def _nothing(text: str, **decided: Any) -> dict[str, Any]:
    if text:
        raise ValueError(f"unexpected {text!r}")
    return decided


_SCHEDULE: dict[str, Reader] = {
    "scalar": lambda text: _nothing(text, vector=None, lanes=1),
    "vector": _vector,
    "block": lambda text: {"block": int(text)},
    "steps": lambda text: {"steps": _parse_steps(text)},
    "tile": lambda text: {"tile": _tile(text)},
    "transposed": lambda text: {"transposed": _counted(text)},
    "product": lambda text: {"product": _parse_product(text)},
    "calls": lambda text: {"calls": tuple((op, dtype) for op, dtype in _parse_pairs(text, " of "))},
    "erf_plus_one": lambda text: {"erf_plus_one": tuple(text.split(", "))},
    "cost": _cost,
    "rows": _rows,
    "warps": lambda text: {"warps": int(text)},
    "persistent": lambda text: _nothing(text, persistent=True),
    "along": lambda text: {"along": tuple(text.split(", "))},
    "places": lambda text: {"wide": {"32": False, "64": True}[text]},
    "picoseconds": lambda text: {"cost": int(text)},
}
_LOOP: dict[str, Reader] = {
    "steps": lambda text: {"steps": _parse_steps(text)},
    "chunk": lambda text: {"chunk": int(text)},
    "exact": lambda text: _nothing(text, exact=True),
    "multiply_adds": lambda text: {"multiply_adds": tuple(text.split(", "))},
    "scans": lambda text: {"scans": _counted(text)},
    "interleaved": lambda text: {
        "interleaved": tuple(tuple(map(int, group.split())) for group in text.split(", "))
    },
}
