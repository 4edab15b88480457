"""Schedules as text, both ways: ``parse_schedule(print_schedule(s)) == s``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.errors import InvalidSchedule
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.text import BLOCKS, parsed_blocks, print_blocks
from dovetail.schedule.notation import COUNT, NAMES, WORD, Notation, pairs, written
from dovetail.schedule.schedule import LoopSchedule, Schedule, Steps, Tile
from dovetail.schedule.tiles import TILES


def _print_steps(steps: Steps) -> str:
    return f"{' '.join(map(str, steps.counts))} masked {steps.masked}".strip()


def _parse_steps(text: str) -> Steps:
    counts, found, masked = text.rpartition("masked ")
    if not found:
        raise ValueError(f"cannot read the steps {text!r}")
    return Steps(tuple(map(int, counts.split())), masked)


def _parse_cost(text: str) -> tuple[int, int]:
    cost, grain = text.removesuffix(" ps").split(" ps of ")
    return int(cost), int(grain)


_STEPS = Notation(_print_steps, _parse_steps)
_GROUPS = Notation(
    lambda groups: ", ".join(" ".join(map(str, group)) for group in groups),
    lambda text: tuple(tuple(map(int, group.split())) for group in text.split(", ")),
)
# What may be decided, in the order in which it is written; of a loop by the names of its fields.
_SCHEDULE = {
    "scalar": WORD,
    "vector": pairs(int),
    "block": COUNT,
    "steps": _STEPS,
    "tile": pairs(int),
    "transposed": pairs(int),
    **{word: Notation(str, kind.parse) for word, kind in TILES.items()},
    "calls": pairs(str, " of "),
    "erf_plus_one": NAMES,
    # Picoseconds of a point, of those that are worth another thread.
    "cost": Notation(lambda costs: "{} ps of {} ps".format(*costs), _parse_cost),
}
_LOOP = {
    "steps": _STEPS,
    "chunk": COUNT,
    "exact": WORD,
    "multiply_adds": NAMES,
    "scans": pairs(int),
    "interleaved": _GROUPS,
}


def print_schedule(schedule: Schedule | BlockSchedule) -> str:
    """A line a decision; what is not decided is not there."""
    if isinstance(schedule, BlockSchedule):
        return print_blocks(schedule)
    s, tile = schedule, schedule.tile
    decided = {
        "scalar": s.vector is None,
        "vector": s.vector and ((s.vector, s.lanes),),
        "block": s.block,
        "steps": s.steps,
        "tile": tile and ((tile.across, tile.rows), (tile.along, tile.columns)),
        "transposed": tile and tile.transposed,
        **{
            word: s.register_tiles for word, kind in TILES.items() if type(s.register_tiles) is kind
        },
        "calls": s.calls,
        "erf_plus_one": s.erf_plus_one,
        "cost": (s.cost, s.grain),
    }
    lines = [f"schedule {s.target} {{", *written(decided, _SCHEDULE)]
    for loop in s.loops:
        fields = {word: getattr(loop, word) for word in _LOOP}
        lines += ["  loop {", *(f"  {line}" for line in written(fields, _LOOP)), "  }"]
    return "\n".join([*lines, "}", ""])


def parse_schedule(text: str) -> Schedule | BlockSchedule:
    """The schedule that ``print_schedule`` wrote; InvalidSchedule for anything else."""
    lines = iter([line.strip() for line in text.splitlines() if line.strip()])
    try:
        word, target, brace = next(lines).split()
        if (word, brace) != ("schedule", "{"):
            raise ValueError(f"it starts with {word!r}")
        found, loops = _block(lines, _SCHEDULE | BLOCKS)
        if next(lines, None) is not None:
            raise ValueError("something follows")
        if "rows" in found and not loops:
            return parsed_blocks(target, found)
        ((vector, lanes),) = [(None, 1)] if found.pop("scalar", False) else found.pop("vector")
        cost, grain = found.pop("cost")
        if "tile" in found:
            (across, rows), (along, columns) = found["tile"]
            transposed = found.pop("transposed", ())
            found["tile"] = Tile(across, along, rows, columns, transposed)
        tiles = [found.pop(word) for word in TILES if word in found]
        if len(tiles) > 1:
            raise ValueError("tiles of several kinds")
        found["register_tiles"] = next(iter(tiles), None)
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
