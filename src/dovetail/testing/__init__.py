"""Helpers for testing backends, and the references that generated code and C are tested against."""

from dovetail.registry import registered_backend

__all__ = ["registered_backend"]
