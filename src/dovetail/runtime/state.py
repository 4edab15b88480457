"""The state of a loaded artifact: what the model keeps from call to call. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import UnknownState

if TYPE_CHECKING:
    from dovetail import _native


class State(Mapping[str, "_native.Tensor"]):
    """Buffers that the model writes to, by name.

    What is read is a copy, which ``numpy.asarray`` and ``torch.from_dlpack`` take as it is; what is
    assigned is copied into the buffer. Both wait for a call that is going on.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._numbers = {name: i for i, (name, _, _, _) in enumerate(native.states())}

    def __getitem__(self, name: str) -> _native.Tensor:
        return self._native.read_state(self._number(name))  # type: ignore[no-any-return]

    def __setitem__(self, name: str, value: Any) -> None:
        self._native.write_state(self._number(name), value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def update(self, values: Mapping[str, Any]) -> None:
        """Write several buffers; the others stay as they are."""
        for name in values:
            self._number(name)
        for name, value in values.items():
            self[name] = value

    def reset(self) -> None:
        """Make every buffer what it is in the file."""
        self._native.reset_state()

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            known = ", ".join(self._numbers) or "none"
            raise UnknownState(f"the model keeps no {name!r} from call to call; it keeps: {known}")
        return self._numbers[name]

    def __repr__(self) -> str:
        return f"<state of a loaded artifact: {', '.join(self._numbers) or 'none'}>"
