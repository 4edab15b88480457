"""The .dvt file: its container, and a Program as sections of it. artifact/SPEC.md specifies it."""
