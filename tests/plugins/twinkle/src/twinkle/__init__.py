"""A toy accelerator that runs two operators."""

from twinkle.accelerator import Twinkle

__all__ = ["Twinkle"]
