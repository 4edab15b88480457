"""Python's cycle collector, set aside while PyTorch traces or modules are imported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Self


class CollectorPause:
    """A context without the cycle collector, which would walk all that tracing or importing builds.

    ``lifted`` is a context within it, for code that is not PyTorch's: there the collector is on.
    What was built meanwhile mostly stays, so it joins the oldest generation, as it would after the
    collector had walked it twice; that is what freezing and unfreezing does, in no time. Where the
    collector is off anyway, nothing is changed.
    """

    def __init__(self) -> None:
        self._paused = False

    def __enter__(self) -> Self:
        self._paused = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        if self._paused:
            self._paused = False
            _resume()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """The collector as it was before the pause; outside of the pause, nothing."""
        if not self._paused:
            yield
            return
        _resume()
        try:
            yield
        finally:
            gc.disable()


def _resume() -> None:
    if gc.get_freeze_count() == 0:  # nobody else has frozen anything
        gc.freeze()
        gc.unfreeze()
    gc.enable()
