"""Graph → graph: named, hashed passes at three stages, and the manager that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.passes.base import Pass, Passes, as_pass

if TYPE_CHECKING:
    from dovetail.passes.manager import PassManager, default, set_default
    from dovetail.passes.patterns import Match, rewrite

__all__ = [
    "Match",
    "Pass",
    "PassManager",
    "Passes",
    "as_pass",
    "default",
    "rewrite",
    "set_default",
]

_HOME = {"PassManager": "manager", "default": "manager", "set_default": "manager"}
_HOME |= {"Match": "patterns", "rewrite": "patterns"}


def __getattr__(name: str) -> Any:
    """Load what needs torch on first use."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'dovetail.passes' has no attribute {name!r}")
    return getattr(import_module(f"dovetail.passes.{_HOME[name]}"), name)
