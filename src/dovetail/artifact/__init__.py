"""Exported models: a program, its constants and its state; and their files.

The names load torch when they are used, so that reading the format needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.artifact.exported import Artifact, export

__all__ = ["Artifact", "export"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("dovetail.artifact.exported"), name)
    raise AttributeError(f"module 'dovetail.artifact' has no attribute {name!r}")
