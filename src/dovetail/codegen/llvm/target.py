"""The machine code is made for, and the only place that talks to llvmlite."""

from __future__ import annotations

import functools
import platform
import threading
from dataclasses import dataclass
from typing import Any

from dovetail.errors import UnsupportedGraph

_lock = threading.Lock()
# What the runtime asks of a processor for each level of x86-64 (native/src/elf.c), and the bytes
# of its vectors.
_LEVELS = {
    1: (),
    2: ("sse4.2",),
    3: ("avx2", "fma", "bmi2"),
    4: ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
}
_WIDTHS = {1: 16, 2: 16, 3: 32, 4: 64}


@dataclass(frozen=True, slots=True)
class Target:
    """A processor: LLVM's triple, its name, its features, the bytes of a vector register.

    ``level`` is the level of x86-64 (1 to 4) that a machine must have to run the code.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    level: int

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
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"the runtime loads code for x86-64 only, not for {platform.machine()}"
    return ""


@functools.cache
def host() -> Target:
    """This machine."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    level = max(n for n, needed in _LEVELS.items() if all(features.get(f) for f in needed))
    triple, name = llvm.get_default_triple(), llvm.get_host_cpu_name()
    return Target(triple, name, features.flatten(), _WIDTHS[level], level)


def of_level(level: int) -> Target:
    """Any machine of a level of x86-64: what code in a file is made for."""
    return Target("x86_64-unknown-linux-gnu", f"x86-64-v{level}", "", _WIDTHS[level], level)


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
