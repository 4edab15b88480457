"""The machine code is made for, and the only place that talks to llvmlite."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any

from dovetail.errors import UnsupportedGraph

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Target:
    """A processor: LLVM's triple, its name, its features, and the bytes of a vector register."""

    triple: str
    cpu: str
    features: str
    vector_bytes: int

    @property
    def lanes(self) -> int:
        """float32 elements in a vector."""
        return self.vector_bytes // 4


def missing() -> str:
    """Why code cannot be generated here; empty when it can."""
    try:
        import llvmlite.binding  # noqa: F401
    except ImportError:
        return "it needs llvmlite: pip install 'dovetail[cpu]'"
    return ""


@functools.cache
def host() -> Target:
    """This machine."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    width = 16
    if features.get("avx512f") and features.get("avx512vl") and features.get("avx512bw"):
        width = 64
    elif features.get("avx2"):
        width = 32
    return Target(llvm.get_default_triple(), llvm.get_host_cpu_name(), features.flatten(), width)


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def _machine(target: Target) -> Any:
    llvm = _llvm()
    found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
    )


@functools.lru_cache(maxsize=512)
def assemble(text: str, target: Target) -> bytes:
    """Object code for LLVM IR text; stack slots become registers, nothing else is optimised."""
    llvm = _llvm()
    with _lock:
        machine = _machine(target)
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise UnsupportedGraph(f"LLVM refuses the generated code: {error}") from None
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        passes = llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        return bytes(machine.emit_object(module))


class Library:
    """Object code, loaded: functions by name."""

    def __init__(self, code: bytes) -> None:
        llvm = _llvm()
        with _lock:
            machine = llvm.Target.from_default_triple().create_target_machine()
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """A function's address."""
        with _lock:
            return int(self._engine.get_function_address(name))
