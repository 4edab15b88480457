"""Helpers for testing backends."""

from dovetail.registry import registered_backend

__all__ = ["registered_backend"]
