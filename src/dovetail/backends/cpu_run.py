"""Runs a CPU program: kernels by their entries, library calls through PyTorch."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.capture.ops import resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.codegen.llvm.module import HEADER
from dovetail.codegen.llvm.target import Library
from dovetail.ir import Arg, Attr, OpCall, Ref, Segment, Size, SizeProgram
from dovetail.ir.encode import segment_from_bytes
from dovetail.ir.kernel import CHECKS
from dovetail.ir.size import Dim, parse_size
from dovetail.ir.tensor import TensorDesc

Registers = list[Any]
Sizes = Sequence[int]


@functools.cache
def thread_functions() -> tuple[int, int, int]:
    """GOMP_parallel, omp_get_thread_num and omp_get_num_threads of PyTorch's OpenMP, or zeros."""
    try:
        maps = Path("/proc/self/maps").read_text()
        found = re.search(r"\S*libgomp[^\s]*", maps)
        library = ctypes.CDLL(found.group(0) if found else None)
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        addresses = [ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names]
        return addresses[0], addresses[1], addresses[2]
    except (OSError, AttributeError):
        return 0, 0, 0


class Workspace:
    """The arena of one run, the registers that lie in it, and the flag that checks set."""

    def __init__(self, program: CpuExecutable) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.arena = torch.empty(program.arena_size + 64, dtype=torch.uint8)
            start = -self.arena.data_ptr() % 64
            self.registers: Registers = [None] * len(program.origins)
            for number, origin in enumerate(program.origins):
                if origin["kind"] == "arena":
                    self.registers[number] = self._block(origin, start)
                elif origin["kind"] == "view" and program.is_fixed(origin):
                    base = self.registers[origin["of"]]
                    self.registers[number] = base.as_strided(
                        origin["shape"], origin["strides"], base.storage_offset() + origin["offset"]
                    )
        self.flag = ctypes.c_int64(0)
        self.flag_address = ctypes.addressof(self.flag)

    def _block(self, origin: dict[str, Any], start: int) -> Any:
        dtype = getattr(torch, origin["dtype"])
        place = (start + origin["offset"]) // dtype.itemsize
        usable = self.arena.numel() // dtype.itemsize * dtype.itemsize
        typed = self.arena[:usable].view(dtype)
        return typed.as_strided(origin["shape"], origin["strides"], place)


class CpuExecutable:
    """A loaded program; call it with the segment's inputs as one list."""

    def __init__(self, description: dict[str, Any], code: bytes) -> None:
        self.segment: Segment = segment_from_bytes(description["segment"].encode())
        self.origins: list[dict[str, Any]] = description["registers"]
        self.arena_size: int = description["arena"]
        self.library = Library(code) if code else None
        self.size_index: dict[Size, int] = {}
        self.symbols = _symbol_sources(self.segment)
        self.steps: list[Callable[[Registers, Sizes, Workspace], None]] = [
            self._step(step) for step in description["steps"]
        ]
        self.outputs = [self._output(out) for out in description["outputs"]]
        self._number_sizes()
        self.pool: list[Workspace] = []

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run; the list is emptied."""
        pool = self.pool
        work = pool.pop() if pool else Workspace(self)
        registers = work.registers.copy()
        registers[: len(inputs)] = inputs
        sizes = self._sizes(inputs)
        inputs.clear()
        for step in self.steps:
            step(registers, sizes, work)
        results = [out(registers, sizes) for out in self.outputs]
        pool.append(work)
        return results

    def is_fixed(self, origin: dict[str, Any]) -> bool:
        """Whether a view is of the arena and the same at every call."""
        dims = (*origin["shape"], *origin["strides"], origin["offset"])
        base = self.origins[origin["of"]]
        return base["kind"] == "arena" and all(isinstance(d, int) for d in dims)

    # ---- sizes -----------------------------------------------------------------------------

    def _dim(self, text: int | str) -> Callable[[Sizes], int]:
        dim: Dim = text if isinstance(text, int) else parse_size(text)
        if isinstance(dim, int):
            return lambda _, value=dim: value  # type: ignore[misc]
        index = self.size_index.setdefault(dim, len(self.size_index))
        return lambda sizes: sizes[index]

    def _dims(self, dims: list[int | str]) -> Callable[[Sizes], tuple[int, ...]]:
        if all(isinstance(d, int) for d in dims):
            constant: tuple[int, ...] = tuple(dims)  # type: ignore[arg-type]
            return lambda _: constant
        getters = [self._dim(d) for d in dims]
        return lambda sizes: tuple(get(sizes) for get in getters)

    def _number_sizes(self) -> None:
        self.size_program: SizeProgram | None = None
        if self.size_index:
            names = [name for name, _, _ in self.symbols]
            self.size_program = SizeProgram(names, self.size_index)

    def _sizes(self, inputs: list[Any]) -> Sizes:
        if self.size_program is None:
            return ()
        values = [
            inputs[position] if dim is None else inputs[position].shape[dim]
            for _, position, dim in self.symbols
        ]
        return self.size_program.evaluate(values)

    # ---- steps -----------------------------------------------------------------------------

    def _step(self, step: dict[str, Any]) -> Callable[[Registers, Sizes, Workspace], None]:
        return self._kernels(step) if step["kind"] == "kernels" else self._call(step)

    def _kernels(self, step: dict[str, Any]) -> Callable[[Registers, Sizes, Workspace], None]:
        assert self.library is not None
        address = self.library.address(f"entry_{step['entry']}")
        run = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)
        pointers, checks = step["pointers"], step["checks"]
        sizes_of = [self._dim(s) for s in step["sizes"]]
        makers = [(n, self._maker(n)) for n in pointers if self._is_made(n)]
        pack = struct.Struct(f"<{HEADER + len(pointers) + len(sizes_of)}q").pack
        parallel, thread, team = thread_functions()

        def kernels(registers: Registers, sizes: Sizes, work: Workspace) -> None:
            for number, make in makers:
                if registers[number] is None:
                    registers[number] = make(registers, sizes)
            threads = torch.get_num_threads() if parallel else 1
            addresses = [registers[n].data_ptr() for n in pointers]
            extra = [get(sizes) for get in sizes_of]
            run(pack(parallel, thread, team, threads, work.flag_address, *addresses, *extra))
            if checks and work.flag.value:
                failed, work.flag.value = work.flag.value, 0
                self.pool.append(work)
                raise _failure(failed)

        return kernels

    def _is_made(self, number: int) -> bool:
        return self.origins[number]["kind"] in ("fresh", "view")

    def _maker(self, number: int) -> Callable[[Registers, Sizes], Any]:
        """How a register is made when it is first needed in a run."""
        origin = self.origins[number]
        shape, strides = self._dims(origin["shape"]), self._dims(origin["strides"])
        if origin["kind"] == "fresh":
            dtype = getattr(torch, origin["dtype"])
            return lambda _, sizes: torch.empty_strided(shape(sizes), strides(sizes), dtype=dtype)
        base, offset = origin["of"], self._dim(origin["offset"])
        make_base = self._maker(base) if self._is_made(base) else None

        def view(registers: Registers, sizes: Sizes) -> Any:
            if registers[base] is None and make_base is not None:
                registers[base] = make_base(registers, sizes)
            root = registers[base]
            start = root.storage_offset() + offset(sizes)
            return root.as_strided(shape(sizes), strides(sizes), start)

        return view

    def _fetch(self, number: int) -> Callable[[Registers, Sizes], Any]:
        if not self._is_made(number):
            return lambda registers, _: registers[number]
        make = self._maker(number)

        def fetch(registers: Registers, sizes: Sizes) -> Any:
            value = registers[number]
            if value is None:
                value = registers[number] = make(registers, sizes)
            return value

        return fetch

    def _call(self, step: dict[str, Any]) -> Callable[[Registers, Sizes, Workspace], None]:
        call: OpCall = self.segment.calls[step["call"]]
        target = resolve_op(step["form"] or call.op)
        operands: dict[str, int] = step["operands"]
        args = [self._argument(a, operands) for a in call.args]
        keywords = {k: self._argument(a, operands) for k, a in call.kwargs.items()}
        results = [
            (tuple(map(int, filter(None, k.split(".")))), n) for k, n in step["results"].items()
        ]
        out = step["out"]

        def host(registers: Registers, sizes: Sizes, _: Workspace) -> None:
            given = [get(registers, sizes) for get in args]
            named = {k: get(registers, sizes) for k, get in keywords.items()}
            if out is not None:
                target(*given, out=registers[out])
                return
            value = target(*given, **named)
            for path, number in results:
                item = value
                for place in path:
                    item = item[place]
                registers[number] = item

        return host

    def _argument(self, arg: Arg, operands: dict[str, int]) -> Callable[[Registers, Sizes], Any]:
        if isinstance(arg, Ref):
            if str(arg) in operands:
                return self._fetch(operands[str(arg)])
            position = next(n for n, i in enumerate(self.segment.inputs) if i.name == arg.name)
            return lambda registers, _: registers[position]
        if isinstance(arg, Size):
            get = self._dim(str(arg))
            return lambda _, sizes: get(sizes)
        if isinstance(arg, Attr):
            constant = to_torch(arg)
            return lambda _r, _s: constant
        if isinstance(arg, tuple):
            items = [self._argument(a, operands) for a in arg]
            return lambda registers, sizes: [get(registers, sizes) for get in items]
        return lambda _r, _s: arg

    def _output(self, out: dict[str, Any]) -> Callable[[Registers, Sizes], Any]:
        ((kind, value),) = out.items()
        if kind == "register":
            return self._fetch(value)
        if kind == "size":
            get = self._dim(value)
            return lambda _, sizes: get(sizes)
        if kind == "scalar":
            position = next(n for n, i in enumerate(self.segment.inputs) if i.name == value)
            return lambda registers, _: registers[position]
        return lambda _r, _s: value


def _failure(code: int) -> Exception:
    """What eager raises for an index out of range."""
    if CHECKS[code - 1] == "check_bounds":
        return RuntimeError("index is out of bounds for the dimension it selects from")
    return IndexError("index out of range in self")


def _symbol_sources(segment: Segment) -> list[tuple[str, int, int | None]]:
    """Where each symbol's value is read: a size input, else a dimension of a tensor."""
    found: dict[str, tuple[int, int | None]] = {}
    for position, given in enumerate(segment.inputs):
        if isinstance(given.desc, TensorDesc):
            for dim, size in enumerate(given.desc.shape):
                if isinstance(size, Size) and size.is_symbol:
                    found.setdefault(size.args[0], (position, dim))
    for position, given in enumerate(segment.inputs):
        if given.kind == "size":
            found[given.name] = (position, None)
    return [(name, position, dim) for name, (position, dim) in found.items()]
