"""The machine code is made for, and the only place that talks to llvmlite."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

from dovetail.errors import CannotSave, UnsupportedGraph
from dovetail.file.processors import (
    AARCH64,
    PROCESSORS,
    no_code_here,
    processor_here,
    processor_name,
)
from dovetail.locks import ForkLock

_lock = ForkLock()
# Bytes of a vector, by the processor's number in a code section.
_WIDTHS = {1: 16, 2: 16, 3: 32, 4: 64, AARCH64: 16}
_TRIPLES = {"x86-64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
NAMED = ("x86-64-v3", "x86-64-v4", "armv8-a")  # what files can hold code for


@dataclass(frozen=True, slots=True)
class Target:
    """A processor: LLVM's triple, its name, its features, the bytes of a vector register.

    ``level`` is the least processor that runs the code, as files number them.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    level: int
    effort: int = 1  # LLVM's level of optimisation

    @property
    def lanes(self) -> int:
        """float32 elements in a vector."""
        return self.vector_bytes // 4


def missing() -> str:
    """Why code cannot be generated here; empty when it can.

    LLVM takes long to load, and code from a cache does without: it is only looked for.
    """
    if importlib.util.find_spec("llvmlite") is None:
        return "it needs llvmlite: pip install 'dovetail[cpu]'"
    return no_code_here()


def host() -> Target:
    """Any processor of this machine's level, or of the lesser one that it is held to.

    Not this very processor: files hand what is compiled here to other machines.
    """
    return of_level(processor_here())


@functools.cache
def of_level(level: int) -> Target:
    """Any processor of a level, as code sections number them."""
    name = processor_name(level)
    if name == "armv8-a":
        return Target(_TRIPLES["aarch64"], "generic", "", _WIDTHS[level], level)
    return Target(_TRIPLES["x86-64"], name, "", _WIDTHS[level], level)


def version() -> str:
    """The version of llvmlite, whose wheels bring their LLVM; nothing of LLVM is loaded."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__}"


def named(name: str) -> Target:
    """Any machine of a kind that code in a file can be made for: x86-64-v3, armv8-a, …."""
    if name not in NAMED:
        raise CannotSave(f"no code can be made for {name!r}: the targets are {', '.join(NAMED)}")
    return of_level(PROCESSORS[name])


def start() -> None:
    """Load LLVM and make ready for this processor, so that the first kernel need not wait."""
    with _lock:
        _machine(host())


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def _machine(target: Target) -> Any:
    llvm = _llvm()
    if target.triple.partition("-")[0] != llvm.get_default_triple().partition("-")[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(
        cpu=target.cpu, features=target.features, opt=target.effort, reloc="pic", codemodel="small"
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
