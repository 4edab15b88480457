"""Kernel IR as OpenCL C."""
