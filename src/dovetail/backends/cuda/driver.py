"""CUDA's driver interface: code becomes functions, and functions are launched."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from threading import Lock

from dovetail.codegen.triton.compile import Cubin
from dovetail.errors import DovetailError

_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_USUAL_SHARED = 48 << 10  # bytes that a block may have without asking
_SCRATCH = 2  # pointers behind a kernel's own arguments: memory that our kernels do not use
_WARP = 32


class CudaFailed(DovetailError, RuntimeError):
    """A call of CUDA's driver failed; the message is the driver's."""


@functools.cache
def _library() -> ctypes.PyDLL:
    """The driver's library. A launch takes microseconds, for which the lock of Python is kept."""
    library = ctypes.PyDLL("libcuda.so.1")
    library.cuLaunchKernel.argtypes = [
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        *[ctypes.c_void_p] * 3,
    ]
    return library


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(text))
        raise CudaFailed((text.value or b"unknown error").decode())


class LoadedKernel:
    """A kernel in the current device's memory; its code is loaded when it is first launched."""

    def __init__(self, cubin: Cubin, arguments: int) -> None:
        library = _library()
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(library.cuModuleLoadData(ctypes.byref(self._module), cubin.code))
        name = cubin.name.encode()
        _check(library.cuModuleGetFunction(ctypes.byref(self._function), self._module, name))
        if cubin.shared_bytes > _USUAL_SHARED:
            _check(library.cuFuncSetAttribute(self._function, _SHARED, cubin.shared_bytes))
        self._threads, self._shared = cubin.warps * _WARP, cubin.shared_bytes
        self._count, count = arguments, arguments + _SCRATCH
        self._values = (ctypes.c_uint64 * count)()
        step, start = ctypes.sizeof(ctypes.c_uint64), ctypes.addressof(self._values)
        self._places = (ctypes.c_void_p * count)(*(start + n * step for n in range(count)))
        self._launch, self._lock = library.cuLaunchKernel, Lock()

    def __call__(self, blocks: int, stream: int, arguments: Sequence[int]) -> None:
        """Launch so many blocks with these pointers and numbers."""
        with self._lock:
            self._values[: self._count] = list(arguments)
            code = self._launch(
                self._function,
                blocks,
                1,
                1,
                self._threads,
                1,
                1,
                self._shared,
                stream,
                self._places,
                None,
            )
        if code:
            _check(code)
