"""Raises on import."""

raise RuntimeError("no driver")
