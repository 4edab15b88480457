"""``dovetail.load``: a file as a function. Needs no torch unless the file calls it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.runtime import loaded
from dovetail.runtime.loaded import Loaded

if TYPE_CHECKING:
    from dovetail.artifact.exported import Artifact


def load(
    path: str | os.PathLike[str],
    *,
    trusted_keys: Sequence[bytes | str] | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    trust: bool = False,
    copy: bool = False,
    max_work: float | None = None,
    max_memory: float | None = None,
) -> Loaded | Artifact:
    """Read and verify an artifact; call the result as the model.

    Tensors go in and come out by DLPack: torch tensors give torch tensors, NumPy arrays give
    NumPy arrays. ``trusted_keys`` are Ed25519 public keys whose signatures let native code in the
    file run; by default those in the user's configuration (see ``dovetail.runtime.trust``).
    Code that may not or cannot run here is generated again where llvmlite is installed;
    elsewhere the file's kernels are interpreted, with a warning. ``plugins`` are libraries that
    implement ``dovetail_plugin.h``, for a file that runs on their devices; those that are loaded
    already need not be named, nor, for a file that is trusted, those of installed packages.
    ``trust`` vouches for the file as a signature would: all that is in it may run, every operator
    of PyTorch included; others get ``UntrustedArtifact`` where they need it. docs/security.md says
    what a file may do.

    What was loaded stays as it was, whatever happens to the file: it is read once and checked in
    private memory, its constants before the first run. Only constants of a file loaded with
    ``trust`` are mapped instead, which takes milliseconds whatever their size; if such a file is
    changed or cut short, calls raise ``ArtifactChanged``. With ``copy`` all constants are copied
    and checked before this returns.

    ``max_work`` and ``max_memory`` are the steps and the bytes that one call may take; a call
    that would take more raises ``LimitExceeded`` before it starts. For a file that is trusted
    there is no limit by default, for others 2^46 steps and three quarters of the machine's
    memory; ``math.inf`` lifts one. A call is interrupted by Ctrl-C, and can be repeated.

    What the model keeps from call to call is ``.state`` of the result. ``copy.copy`` of it has a
    state of its own and shares the rest; a pickle of it names the file, which must be there, with
    the same contents, where it is unpickled.

    A file of a model on a GPU gives what ``dovetail.export`` gave, an ``Artifact``, in a process
    with PyTorch's CUDA; it needs trust. Its kernels need no Triton on a GPU like the one that they
    were compiled for; on another they are compiled again where Triton is installed, and PyTorch's
    run in their place where it is not, with a warning.
    """
    found = loaded.load(
        path,
        trusted_keys=trusted_keys,
        plugins=plugins,
        trust=trust,
        copy=copy,
        max_work=max_work,
        max_memory=max_memory,
        regenerate=_regenerate,
        opener=load,
    )
    if not found.holds_graph:
        return found
    from dovetail.runtime.blobs import compiled_graph

    held = compiled_graph(found.native)
    if held is None:
        return found
    from dovetail.artifact.exported import load_graph

    return load_graph(held)


def _regenerate(kernel_ir: bytes, trusted: bool) -> tuple[bytes | None, str]:
    try:
        from dovetail.backends.cpu.regenerate import regenerate
    except ModuleNotFoundError as error:
        if error.name != "dovetail.backends":
            raise
        return None, (
            "dovetail-runtime has no compiler; sign the file (dovetail sign) or vouch for it "
            "(trust=True), and save it with code for this processor"
        )
    return regenerate(kernel_ir, trusted)
