"""Backends in C: libraries that implement ``dovetail_plugin.h``."""

from dovetail.backends.plugin.backend import PluginBackend, load_plugin

__all__ = ["PluginBackend", "load_plugin"]
