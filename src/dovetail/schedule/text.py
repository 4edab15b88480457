"""Schedules as text, both ways: ``parse_schedule(print_schedule(s)) == s``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.errors import InvalidSchedule
from dovetail.schedule.schedule import (
    BlockSchedule,
    ConvolutionTile,
    DepthwiseTile,
    LoopSchedule,
    ProductTile,
    Schedule,
    Steps,
    Tile,
)


class Notation(NamedTuple):
    """How what was decided is written behind its word, and read."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _pairs(read: Callable[[str], Any], between: str = " by ") -> Notation:
    def parse(text: str) -> tuple[Any, ...]:
        pairs = [part.split(between) for part in text.split(", ")]
        return tuple((name, read(value)) for name, value in pairs)

    return Notation(
        lambda pairs: ", ".join(f"{name}{between}{value}" for name, value in pairs), parse
    )


def _print_steps(steps: Steps) -> str:
    return f"{' '.join(map(str, steps.counts))} masked {steps.masked}".strip()


def _parse_steps(text: str) -> Steps:
    counts, found, masked = text.rpartition("masked ")
    if not found:
        raise ValueError(f"cannot read the steps {text!r}")
    return Steps(tuple(map(int, counts.split())), masked)


def _parse_nothing(text: str) -> bool:
    if text:
        raise ValueError(f"unexpected {text!r}")
    return True


def _parse_rows(text: str) -> tuple[int, int]:
    rows, columns, count = text.partition(", columns ")
    return int(rows), int(count) if columns else 0


def _parse_cost(text: str) -> tuple[int, int]:
    cost, grain = text.removesuffix(" ps").split(" ps of ")
    return int(cost), int(grain)


_PRODUCT = re.compile(
    r"(\w+) by (\d+(?: or \d+)*) of (\d+), (\d+) vectors, "
    r"unroll (\d+) chunk (\d+) depth (\d+)( packed)?"
)


def _print_product(p: ProductTile) -> str:
    heights, packed = " or ".join(map(str, p.heights)), " packed" if p.packed else ""
    sums = f"unroll {p.unroll} chunk {p.chunk} depth {p.depth}"
    return f"{p.rows} by {heights} of {p.block}, {p.vectors} vectors, {sums}{packed}"


def _parse_product(text: str) -> ProductTile:
    found = _PRODUCT.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read {text!r}")
    rows, heights, *numbers, packed = found.groups()
    block, vectors, unroll, chunk, depth = map(int, numbers)
    tall = tuple(map(int, heights.split(" or ")))
    return ProductTile(rows, tall, vectors, block, unroll, chunk, depth, packed is not None)


_CONVOLUTION = re.compile(
    r"(\w+(?: \w+)*) by (\d+(?: or \d+)*) of (\d+), (\d+) vectors, "
    r"unroll (\d+) apart (\d+) chunk (\d+)( by pixels)?"
)


def _print_convolution(t: ConvolutionTile) -> str:
    heights, order = " or ".join(map(str, t.heights)), " by pixels" if t.by_pixels else ""
    sums = f"unroll {t.unroll} apart {t.apart} chunk {t.chunk}"
    return f"{' '.join(t.pixels)} by {heights} of {t.block}, {t.vectors} vectors, {sums}{order}"


def _parse_convolution(text: str) -> ConvolutionTile:
    found = _CONVOLUTION.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read {text!r}")
    pixels, heights, *numbers, order = found.groups()
    block, vectors, unroll, apart, chunk = map(int, numbers)
    tall, axes = tuple(map(int, heights.split(" or "))), tuple(pixels.split(" "))
    sums = (unroll, apart, chunk, order is not None)
    return ConvolutionTile(axes, tall, vectors, block, *sums)


def _print_depthwise(t: DepthwiseTile) -> str:
    return f"{t.pixels} by {' or '.join(map(str, t.heights))}"


def _parse_depthwise(text: str) -> DepthwiseTile:
    pixels, heights = text.split(" by ")
    return DepthwiseTile(pixels, tuple(map(int, heights.split(" or "))))


_COUNT, _WORD = Notation(str, int), Notation(lambda _: "", _parse_nothing)
_NAMES = Notation(", ".join, lambda text: tuple(text.split(", ")))
_STEPS = Notation(_print_steps, _parse_steps)
_GROUPS = Notation(
    lambda groups: ", ".join(" ".join(map(str, group)) for group in groups),
    lambda text: tuple(tuple(map(int, group.split())) for group in text.split(", ")),
)
# What may be decided, in the order in which it is written; of a loop by the names of its fields.
_SCHEDULE = {
    "scalar": _WORD,
    "vector": _pairs(int),
    "block": _COUNT,
    "steps": _STEPS,
    "tile": _pairs(int),
    "transposed": _pairs(int),
    "product": Notation(_print_product, _parse_product),
    "convolution": Notation(_print_convolution, _parse_convolution),
    "depthwise": Notation(_print_depthwise, _parse_depthwise),
    "calls": _pairs(str, " of "),
    "erf_plus_one": _NAMES,
    # Picoseconds of a point, of those that are worth another thread.
    "cost": Notation(lambda costs: "{} ps of {} ps".format(*costs), _parse_cost),
}
_BLOCKS = {
    "rows": Notation(str, _parse_rows),
    "warps": _COUNT,
    "persistent": _WORD,
    "along": _NAMES,
    "places": _COUNT,
    "online": _WORD,
    "short": _WORD,
    "picoseconds": _COUNT,
}
_LOOP = {
    "steps": _STEPS,
    "chunk": _COUNT,
    "exact": _WORD,
    "multiply_adds": _NAMES,
    "scans": _pairs(int),
    "interleaved": _GROUPS,
}


def print_schedule(schedule: Schedule | BlockSchedule) -> str:
    """A line a decision; what is not decided is not there."""
    if isinstance(schedule, BlockSchedule):
        return _print_blocks(schedule)
    s, tile = schedule, schedule.tile
    decided = {
        "scalar": s.vector is None,
        "vector": s.vector and ((s.vector, s.lanes),),
        "block": s.block,
        "steps": s.steps,
        "tile": tile and ((tile.across, tile.rows), (tile.along, tile.columns)),
        "transposed": tile and tile.transposed,
        "product": s.product,
        "convolution": s.convolution,
        "depthwise": s.depthwise,
        "calls": s.calls,
        "erf_plus_one": s.erf_plus_one,
        "cost": (s.cost, s.grain),
    }
    lines = [f"schedule {s.target} {{", *_lines(decided, _SCHEDULE)]
    for loop in s.loops:
        fields = {word: getattr(loop, word) for word in _LOOP}
        lines += ["  loop {", *(f"  {line}" for line in _lines(fields, _LOOP)), "  }"]
    return "\n".join([*lines, "}", ""])


def _print_blocks(s: BlockSchedule) -> str:
    decided = {
        "rows": f"{s.rows}, columns {s.columns}" if s.columns else s.rows,
        "warps": s.warps,
        "persistent": s.persistent,
        "along": s.along,
        "places": 64 if s.wide else 32,
        "online": s.online,
        "short": s.short,
        "picoseconds": s.cost,
    }
    return "\n".join([f"schedule {s.target} {{", *_lines(decided, _BLOCKS), "}", ""])


def _lines(decided: Mapping[str, Any], forms: Mapping[str, Notation]) -> Iterator[str]:
    for word, value in decided.items():
        if value:
            yield f"  {word} {forms[word].write(value)}".rstrip()


def parse_schedule(text: str) -> Schedule | BlockSchedule:
    """The schedule that ``print_schedule`` wrote; InvalidSchedule for anything else."""
    lines = iter([line.strip() for line in text.splitlines() if line.strip()])
    try:
        word, target, brace = next(lines).split()
        if (word, brace) != ("schedule", "{"):
            raise ValueError(f"it starts with {word!r}")
        found, loops = _block(lines, _SCHEDULE | _BLOCKS)
        if next(lines, None) is not None:
            raise ValueError("something follows")
        if "rows" in found and not loops:
            rows, columns = found.pop("rows")
            wide, cost = {32: False, 64: True}[found.pop("places")], found.pop("picoseconds", 0)
            return BlockSchedule(target, rows, columns, wide=wide, cost=cost, **found)
        ((vector, lanes),) = [(None, 1)] if found.pop("scalar", False) else found.pop("vector")
        cost, grain = found.pop("cost")
        if "tile" in found:
            (across, rows), (along, columns) = found["tile"]
            transposed = found.pop("transposed", ())
            found["tile"] = Tile(across, along, rows, columns, transposed)
        return Schedule(target, vector, lanes, tuple(loops), cost=cost, grain=grain, **found)
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise InvalidSchedule(f"this text is no schedule: {error}") from None


def _block(
    lines: Iterator[str], forms: Mapping[str, Notation]
) -> tuple[dict[str, Any], list[LoopSchedule]]:
    """The decisions up to a closing brace, and the loops among them."""
    found: dict[str, Any] = {}
    loops: list[LoopSchedule] = []
    while (line := next(lines)) != "}":
        if line == "loop {" and forms is not _LOOP:
            loops.append(LoopSchedule(**_block(lines, _LOOP)[0]))
            continue
        word, _, rest = line.partition(" ")
        if word not in forms:
            raise ValueError(f"unknown decision {word!r}")
        if word in found:
            raise ValueError(f"{word} twice")
        found[word] = forms[word].read(rest)
    return found, loops
