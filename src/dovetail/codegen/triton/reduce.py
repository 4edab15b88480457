"""Reductions and scans of a block: along its columns, and from step to step of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.codegen.triton.operations import NAMES, apply, cast, number
from dovetail.ir.kernel import Reduce, Scan
from dovetail.ir.ops import REDUCTIONS

if TYPE_CHECKING:
    from dovetail.codegen.triton.render import TritonRenderer

LAST = 2**63 - 1  # a place that any other comes before
_JOINED = {"prod": "multiplied", "max": "larger", "min": "smaller"}
_PLACED = {"argmax": "first_larger", "argmin": "first_smaller"}
_TRUTH = {"any": "max", "all": "min"}  # as a reduction of 0 and 1
_OF_BOOL = {"max": "any", "min": "all"}


def _kind(i: Reduce | Scan) -> str:
    """The reduction; of truth values the largest is any and the smallest all."""
    return _OF_BOOL.get(i.op, i.op) if i.dtype == "bool" else i.op


def _dtype(r: TritonRenderer, i: Reduce | Scan) -> str:
    return r.types[i.args[0]] if i.op in _PLACED else i.dtype


def start(r: TritonRenderer, i: Reduce | Scan) -> None:
    """The accumulators before the first step: a block's for a reduction, a column's for a scan."""
    dtype = _dtype(r, i)
    shape = r.shape(True, isinstance(i, Reduce))
    first = number(REDUCTIONS[i.op].identity(dtype), dtype)
    r.line(f"so_far_{i.name} = tl.full({shape}, {first}, {NAMES[dtype]})")
    if i.op in _PLACED:
        r.line(f"at_{i.name} = tl.full({shape}, {LAST}, tl.int64)")


def step(r: TritonRenderer, i: Reduce) -> None:
    """A block's elements: reduced at once, or joined with those of the steps before."""
    given, place = elements(r, i), ""
    if i.op in _PLACED:
        place = _masked(r, _spread(r, i.args[1]), str(LAST))
    if r.at_once:
        _reduced(r, i, given, place)
        return
    so_far, dtype = f"so_far_{i.name}", _dtype(r, i)
    if i.op in _PLACED:
        at = f"at_{i.name}"
        r.line(f"{so_far}, {at} = {_PLACED[i.op]}({so_far}, {at}, {given}, {place})")
    else:
        r.line(f"{so_far} = {apply(REDUCTIONS[i.op].operation, dtype, [so_far, given])}")


def finish(r: TritonRenderer, i: Reduce) -> None:
    """The result after the last step."""
    _reduced(r, i, f"so_far_{i.name}", f"at_{i.name}")


def scan(r: TritonRenderer, i: Scan) -> None:
    """Every step along the columns, going on from the block before."""
    given = r.define(f"{i.name}_given", elements(r, i), True, True).name
    op, kind = REDUCTIONS[i.op].operation, _kind(i)
    if kind in ("sum", "prod"):
        text = f"tl.cum{kind}({given}, 1).to({NAMES[i.dtype]})"
    elif kind in _TRUTH:
        joined = _JOINED[_TRUTH[kind]]
        text = f"(tl.associative_scan({given}.to(tl.int32), 1, {joined}) != 0)"
    else:
        text = f"tl.associative_scan({given}, 1, {_JOINED[kind]})"
    if r.at_once:
        r.define(i.name, text, True, True)
        return
    so_far, inner = f"so_far_{i.name}", r.define(f"{i.name}_inner", text, True, True).name
    r.define(i.name, apply(op, i.dtype, [so_far, inner]), True, True)
    total = r.define(f"{i.name}_total", _all(kind, i.dtype, given), True, False).name
    r.line(f"{so_far} = {apply(op, i.dtype, [so_far, total])}")


def _spread(r: TritonRenderer, name: str) -> str:
    """A value as a whole block."""
    found = r.names[name]
    if found.columns and (found.rows or r.schedule.rows == 1):
        return found.name
    return f"tl.broadcast_to({found.name}, {r.shape(True, True)})"


def _masked(r: TritonRenderer, text: str, instead: str) -> str:
    return f"tl.where({r.column_mask}, {text}, {instead})" if r.column_mask else text


def elements(r: TritonRenderer, i: Reduce | Scan) -> str:
    """The block to reduce; beyond its last column is what changes nothing."""
    dtype, have = _dtype(r, i), r.types[i.args[0]]
    text = cast(_spread(r, i.args[0]), have, dtype)
    return _masked(r, text, number(REDUCTIONS[i.op].identity(dtype), dtype))


def _reduced(r: TritonRenderer, i: Reduce, given: str, place: str) -> None:
    if i.op in _PLACED:
        pair = f"tl.reduce(({given}, {place}), 1, {_PLACED[i.op]}, keep_dims=True)"
        r.line(f"best_{i.name}, found_{i.name} = {pair}")
        found = f"found_{i.name}"
        r.define(i.name, f"tl.where({found} == {LAST}, 0, {found})", True, False)
    else:
        r.define(i.name, _all(_kind(i), i.dtype, given), True, False)


def _all(kind: str, dtype: str, given: str) -> str:
    """A block reduced along its columns."""
    if kind in _TRUTH:
        return f"(tl.{_TRUTH[kind]}(({given}).to(tl.int32), 1, keep_dims=True) != 0)"
    if kind == "sum":
        return f"tl.sum({given}, 1, keep_dims=True).to({NAMES[dtype]})"
    return f"tl.reduce({given}, 1, {_JOINED[kind]}, keep_dims=True)"
