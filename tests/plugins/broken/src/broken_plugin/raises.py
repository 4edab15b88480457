"""Raises on import, as a package does whose driver is missing."""

raise RuntimeError("libtwinkle.so.2 is not installed")
