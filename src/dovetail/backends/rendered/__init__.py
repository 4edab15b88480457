"""What all backends made of a renderer share; ``opencl`` is one."""

from dovetail.backends.rendered.backend import (
    Device,
    Function,
    Memory,
    NoDevice,
    RendererBackend,
)

__all__ = ["Device", "Function", "Memory", "NoDevice", "RendererBackend"]
