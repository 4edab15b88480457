"""CUDA's driver interface: code becomes functions, which the C runtime launches."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

from dovetail.codegen.triton.compile import Cubin
from dovetail.errors import DovetailError

_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_USUAL_SHARED = 48 << 10  # bytes that a block may have without asking
_WARP = 32


class CudaFailed(DovetailError, RuntimeError):
    """A call of CUDA's driver failed; the message is the driver's."""


class LaunchedFunction(NamedTuple):
    """A kernel in a device's memory, and the shape of its blocks."""

    address: int
    threads: int
    shared: int  # bytes


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def launch_address() -> int:
    """Where the driver's function is that launches a kernel."""
    return ctypes.cast(_library().cuLaunchKernel, ctypes.c_void_p).value or 0


def raise_failed(code: int) -> None:
    """CudaFailed, in the driver's words."""
    text = ctypes.c_char_p()
    _library().cuGetErrorString(code, ctypes.byref(text))
    raise CudaFailed((text.value or b"unknown error").decode())


def _check(code: int) -> None:
    if code:
        raise_failed(code)


def load(cubin: Cubin) -> LaunchedFunction:
    """A kernel's code on the current device, where it stays as long as the process lives."""
    library = _library()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(library.cuModuleLoadData(ctypes.byref(module), cubin.code))
    name = cubin.name.encode()
    _check(library.cuModuleGetFunction(ctypes.byref(function), module, name))
    if cubin.shared_bytes > _USUAL_SHARED:
        _check(library.cuFuncSetAttribute(function, _SHARED, cubin.shared_bytes))
    return LaunchedFunction(function.value or 0, cubin.warps * _WARP, cubin.shared_bytes)
