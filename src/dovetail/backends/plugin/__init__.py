"""Backends in C: libraries that implement ``dovetail_plugin.h``."""
