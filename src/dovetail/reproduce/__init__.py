"""What fails to compile, or computes something else than eager, as the smallest script."""

from dovetail.reproduce.reproduce import Reproduction, reproduce

__all__ = ["Reproduction", "reproduce"]
