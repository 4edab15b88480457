"""What a kernel takes, declared instead of coded: each refusal says what was expected.

>>> Constraints(dtypes={"float32"}, ranks={2}, layout="contiguous", attributes={"alpha": {1}})
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from dovetail.backend import Support
from dovetail.errors import InvalidOption, UnknownOption
from dovetail.ir import Arg, Attr, OpCall, Real, Size, TensorDesc
from dovetail.ir.dtypes import DTYPES, item_bytes

LAYOUTS = ("any", "contiguous")


@dataclass(frozen=True)
class Constraints:
    """Conditions on a call. Those on tensors hold for each tensor it takes or gives.

    ``dtypes`` and ``ranks`` list what is taken (None: anything). ``layout`` is "any" or
    "contiguous". ``alignment`` asks that rows (the innermost dimension) be a multiple of so many
    bytes. ``static`` refuses symbolic shapes. ``attributes`` lists the values that arguments which
    are not tensors may have, by the name they have in the operator's schema.
    """

    dtypes: Collection[str] | None = None
    ranks: Collection[int] | None = None
    layout: str = "any"
    alignment: int = 1
    static: bool = False
    attributes: Mapping[str, Collection[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UnknownOption("layout", self.layout, LAYOUTS)
        for name in ("dtypes", "ranks"):
            if isinstance(getattr(self, name), str | int):
                raise InvalidOption(name, getattr(self, name), "a collection")
        for dtype in self.dtypes or ():
            _check_dtype(dtype)
        if not isinstance(self.alignment, int) or self.alignment < 1:
            raise InvalidOption("alignment", self.alignment, "a number of bytes, at least 1")

    @staticmethod
    def names() -> frozenset[str]:
        """What can be declared."""
        return frozenset(f.name for f in fields(Constraints))

    def check(self, call: OpCall, arguments: Callable[[OpCall], Mapping[str, Arg]]) -> Support:
        """Yes, or the first condition that does not hold.

        ``arguments`` gives a call's arguments by name, defaults included.
        """
        for what, desc in _tensors(call):
            problem = self._objection(desc)
            if problem:
                return Support.no(f"{what} {problem}")
        if self.attributes:
            given = arguments(call)
            for name, allowed in self.attributes.items():
                if not _is_among(given.get(name), allowed):
                    shown = ", ".join(sorted(map(repr, allowed)))
                    return Support.no(f"{name} is {_shown(given.get(name))}, takes {shown}")
        return Support.yes()

    def _objection(self, desc: TensorDesc) -> str:
        if self.dtypes is not None and desc.dtype not in self.dtypes:
            return f"is {desc.dtype}, takes {', '.join(sorted(self.dtypes))}"
        if self.ranks is not None and desc.rank not in self.ranks:
            return f"has rank {desc.rank}, takes {', '.join(map(str, sorted(self.ranks)))}"
        if self.static and not desc.is_static:
            return f"has the symbolic shape {desc}, takes static shapes"
        if self.layout == "contiguous" and desc.is_contiguous is not True:
            return f"is not known to be contiguous (strides {list(desc.strides)})"
        return self._misalignment(desc)

    def _misalignment(self, desc: TensorDesc) -> str:
        row = desc.shape[-1] if desc.shape else 1
        if self.alignment == 1 or (
            isinstance(row, int) and row * item_bytes(desc.dtype) % self.alignment == 0
        ):
            return ""
        return f"has rows of {row} elements, takes multiples of {self.alignment} bytes"


def _check_dtype(dtype: Any) -> None:
    """InvalidOption unless it is the name of a type, with the nearest one."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return
    named = str(dtype).removeprefix("torch.")
    near = [named] if named in DTYPES else get_close_matches(named, DTYPES, 2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise InvalidOption("dtypes", dtype, f"names such as 'float32'{hint}")


def _tensors(call: OpCall) -> Iterator[tuple[str, TensorDesc]]:
    yield from ((f"input {i}", desc) for i, desc in enumerate(call.inputs))
    yield from ((f"output {i}", desc) for i, desc in enumerate(call.outputs))


def _is_among(value: Arg, allowed: Collection[Any]) -> bool:
    if isinstance(value, Size | Real):
        return False
    plain = value.value if isinstance(value, Attr) else value
    return any(type(plain) is type(a) and plain == _plain(a) for a in allowed)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _shown(value: Arg) -> str:
    return str(value) if isinstance(value, Attr | Size | Real) else repr(value)
