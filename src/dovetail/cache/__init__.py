"""Compiled graphs kept between processes: bytes under a key of named parts."""

from dovetail.cache.key import Key

__all__ = ["Key"]
