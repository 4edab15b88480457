"""Targets as LLVM knows them; the only place that talks to llvmlite."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any

from dovetail.errors import CannotSave, UnsupportedGraph
from dovetail.file.processors import no_code_here, target_here
from dovetail.locks import ForkLock

if TYPE_CHECKING:  # a start from the cache asks for the version of LLVM, and needs no target
    from dovetail.ir.target import Target

_lock = ForkLock()
_X86_64, _AARCH64 = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
# LLVM's triples, and its names of processors where they are not ours.
_TRIPLES = {"armv8-a": _AARCH64}
_PROCESSORS = {"x86-64-v1": "x86-64", "x86-64-v4-bf16": "x86-64-v4", "armv8-a": "generic"}
_BEYOND = {"x86-64-v4-bf16": "+avx512bf16"}  # what LLVM's processor of that name lacks
NAMED = ("x86-64-v3", "x86-64-v4", "x86-64-v4-bf16", "armv8-a")  # what files can hold code for


def missing() -> str:
    """Why code cannot be generated here; empty when it can.

    LLVM takes long to load, and code from a cache does without: it is only looked for.
    """
    if importlib.util.find_spec("llvmlite") is None:
        return "it needs llvmlite: pip install 'dovetail[cpu]'"
    return no_code_here()


def version() -> str:
    """The version of llvmlite, whose wheels bring their LLVM; nothing of LLVM is loaded."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__}"


def named(name: str) -> Target:
    """Any machine of a kind that code in a file can be made for: x86-64-v3, armv8-a, …."""
    if name not in NAMED:
        raise CannotSave(f"no code can be made for {name!r}: the targets are {', '.join(NAMED)}")
    from dovetail.ir.target import TARGETS

    return TARGETS[name]


def start() -> None:
    """Load LLVM and make ready for this processor, so that the first kernel need not wait."""
    with _lock:
        _machine(target_here(), 1)


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def _machine(target: Target, effort: int) -> Any:
    llvm, triple = _llvm(), _TRIPLES.get(target.name, _X86_64)
    if triple.partition("-")[0] != llvm.get_default_triple().partition("-")[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    found = llvm.Target.from_triple(triple)
    cpu = _PROCESSORS.get(target.name, target.name)
    more = _BEYOND.get(target.name, "")
    return found.create_target_machine(
        cpu=cpu, features=more, opt=effort, reloc="pic", codemodel="small"
    )


@functools.lru_cache(maxsize=512)
def assemble(text: str, target: Target, effort: int = 1) -> bytes:
    """Object code for LLVM IR text; stack slots become registers, nothing else is optimised.

    ``effort`` is LLVM's level of optimisation.
    """
    with _lock:
        machine = _machine(target, effort)
        return bytes(machine.emit_object(_module(text, machine)))


def assembly(text: str, target: Target, effort: int = 1) -> str:
    """The same code as assembly, for people to read."""
    with _lock:
        machine = _machine(target, effort)
        return str(machine.emit_assembly(_module(text, machine)))


def _module(text: str, machine: Any) -> Any:
    llvm = _llvm()
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
    return module
