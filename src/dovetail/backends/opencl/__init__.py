"""``opencl``: fused kernels as OpenCL C."""

from dovetail.backends.opencl.backend import OpenCLBackend

__all__ = ["OpenCLBackend"]
