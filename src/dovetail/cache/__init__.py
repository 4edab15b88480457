"""Compiled graphs kept between processes: bytes under a key of named parts."""

from dovetail.cache.access import Bypass, Hit, Miss, lookup, store
from dovetail.cache.flight import compiling
from dovetail.cache.key import Key
from dovetail.cache.manage import clear, why
from dovetail.cache.record import Stats, bypass, stats
from dovetail.cache.settings import Settings, configure
from dovetail.cache.torch_artifacts import register_artifact_type

__all__ = [
    "Bypass",
    "Hit",
    "Key",
    "Miss",
    "Settings",
    "Stats",
    "bypass",
    "clear",
    "compiling",
    "configure",
    "lookup",
    "register_artifact_type",
    "stats",
    "store",
    "why",
]
