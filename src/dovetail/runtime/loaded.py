"""``dovetail.load``: a file as a function. Needs no torch unless the file calls it."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import (
    ArtifactNotFound,
    DovetailError,
    FallbackWarning,
    InterpretedKernels,
    InvalidArtifact,
    PluginNotFound,
    UnsupportedArtifact,
)
from dovetail.file import container
from dovetail.runtime import tree as trees

_MANIFEST = 1
INTERPRETED = -2  # what ``Artifact.code()`` says where kernels are interpreted
BUILT_IN = -1  # the same where built-in kernels serve instead
CHECK_CONSTANTS, TRUST, INSPECT, MAY_OVERLAP, COPY = 1, 2, 4, 8, 16
_PREFER_RECOMPILING = 2  # DVP_BLOB_PREFER_RECOMPILING
# The caller knows that no tensor has its negative or conjugate bit set: they are not looked at.
PLAIN_TENSORS = 1 << 16


# Kernel IR and whether it is trusted → a code section for this machine, or None; and why some of
# the kernels are not in it, for the user.
Regenerate = Callable[[bytes, bool], tuple[bytes | None, str]]


def load(
    path: str | os.PathLike[str],
    *,
    trusted_keys: Sequence[bytes | str] | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    trust: bool = False,
    copy: bool = False,
    regenerate: Regenerate | None = None,
) -> Loaded:
    """Read and verify an artifact; see ``dovetail.load``."""
    if not Path(path).exists():
        raise ArtifactNotFound(f"there is no file {os.fspath(path)!r}")
    native = open_native(
        os.fspath(path),
        flags=(TRUST if trust else 0) | (COPY if copy else 0),
        keys=trusted_keys,
        plugins=plugins,
        regenerate=regenerate,
    )
    return Loaded(native)


def open_native(
    source: str | bytes,
    *,
    flags: int = 0,
    keys: Sequence[bytes | str] | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    regenerate: Regenerate | None = None,
) -> Any:
    """The native artifact, with its host operations resolved where torch is in the process."""
    from dovetail.runtime.trust import public_keys, trusted_keys

    known = trusted_keys() if keys is None else public_keys(keys)
    host = None if flags & INSPECT else _host()
    # Read once: however often it is opened below, it is what was verified here.
    native = _open(_read(source), flags, b"".join(known), host, plugins)
    problem = "" if flags & INSPECT else _compile(native, regenerate)
    if host is not None:
        host.prepare(native)
    if not flags & INSPECT:
        _prepare_blobs(native, host)
        _warn_of_slowness(native, problem)
    return native


def _compile(native: Any, regenerate: Regenerate | None) -> str:
    """Have what would be interpreted run as code made of it; what stands in the way of that.

    The kernels are those that C read and verified, out of its own memory.
    """
    if native.code() != INTERPRETED:
        return ""
    if regenerate is None:
        return "they were not to be compiled"
    code, problem = regenerate(native.section(container.KERNEL_IR) or b"", native.trusted())
    if code is not None:
        try:
            native.use_code(code)
        except DovetailError as error:
            return f"code made of them cannot be loaded: {error}"
    return problem


def _warn_of_slowness(native: Any, problem: str) -> None:
    """Say that generated kernels run slower than they could, why, and what would help."""
    if native.code() == BUILT_IN:
        _warn(f"{_why_not_its_own(native)}; built-in kernels serve instead", FallbackWarning)
    if native.code() == INTERPRETED:
        _warn(f"{_why_not_its_own(native)}; kernels are interpreted: {problem}", InterpretedKernels)


def _warn(text: str, category: type[Warning]) -> None:
    warnings.warn(f"the artifact runs slower than it could: {text}", category, stacklevel=6)


def _why_not_its_own(native: Any) -> str:
    if native.section(container.CODE) is None:
        return "it holds no native code"
    if native.trusted():
        return "its native code is not used, as it is not for this machine"
    return "its native code is not used, as no trusted key signed it"


def _read(source: str | bytes) -> Any:
    try:
        from dovetail import _native
    except ImportError:
        raise UnsupportedArtifact(
            "the C runtime is not built: install dovetail, or run setup.py build_ext --inplace"
        ) from None
    return _native.Source(source)


def _open(
    source: Any,
    flags: int,
    keys: bytes,
    host: Any,
    plugins: Sequence[str | os.PathLike[str]],
) -> Any:
    """Open with the plug-ins of this process, and again with those that packages bring."""
    from dovetail import _native
    from dovetail.runtime.plugins import brought_plugins, known_plugins

    if flags & INSPECT:
        return _native.Artifact(source, flags, keys)
    known = tuple(library.native for library in known_plugins(plugins))
    try:
        return _native.Artifact(source, flags, keys, host, known)
    except PluginNotFound:
        needed = [name for name, _, _ in _native.Artifact(source, INSPECT).devices()]
    brought = tuple(library.native for library in brought_plugins(needed))
    return _native.Artifact(source, flags, keys, host, brought + known)


def _prepare_blobs(native: Any, host: Any) -> None:
    """Load what vendors compiled: blobs of backends in Python are numbered after host calls."""
    rows = native.blobs()
    if not rows:
        return
    from dovetail.runtime.blobs import load_blobs

    if host is not None:
        host.calls += load_blobs(rows)
    for owner, _, on_device, _, state in rows:
        if on_device and state == _PREFER_RECOMPILING:
            warnings.warn(
                f"the plug-in {owner!r} would run the model better if it was exported again: the "
                "compiled code in the file is for another device or an older version",
                FallbackWarning,
                stacklevel=5,
            )


def _host() -> Any:
    """What calls PyTorch, if PyTorch is here: a process that never imported it stays without."""
    if sys.modules.get("torch") is None:
        return None
    from dovetail.runtime.host import Host, use_torch_threads

    use_torch_threads()
    return Host()


class Loaded:
    """An artifact as a function. Any number of threads may call it at one time."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self._run = native.run
        self.manifest = _manifest(native)
        self._inputs: trees.Tree = self.manifest["inputs"]
        self._outputs: trees.Tree = self.manifest["outputs"]
        # Tensors by position and one tensor back: the call goes straight to C.
        self._plain = _is_plain(self._inputs)
        self._single = self._outputs == {"tensor": 0}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on inputs of the kind the model was exported for."""
        if self._plain and not kwargs:
            results = self._run(*args)
            if self._single:
                return results[0]
            given: Sequence[Any] = args
        else:
            flat: list[Any] = []
            trees.flatten(self._inputs, (args, kwargs), flat)
            given = flat
            results = self._run(*flat)
        return trees.unflatten(self._outputs, results, lambda text: self._size(text, given))

    def _size(self, text: str, given: Sequence[Any]) -> int:
        from dovetail.ir.program import VALUE
        from dovetail.ir.size import evaluate, parse_size

        symbols = {
            name: int(given[position] if axis == VALUE else given[position].shape[axis])
            for name, position, axis in self.manifest.get("symbols", [])
        }
        return evaluate(parse_size(text), symbols)

    @property
    def inputs(self) -> list[tuple[str, int, int, tuple[int, ...]]]:
        """Name, DLPack type code, bits and shape (-1: dynamic) of each tensor that goes in."""
        return self.native.inputs()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<dovetail artifact {self.manifest.get('name', '')!r}>"


def _manifest(native: Any) -> dict[str, Any]:
    """The manifest, or a plain one where the file has none: tensors in, a tuple of tensors out."""
    data = native.section(_MANIFEST)
    ins, outs = len(native.inputs()), len(native.outputs())
    if data is None:
        leaves = [[{"tensor": i} for i in range(n)] for n in (ins, outs)]
        return {
            "inputs": {"tuple": [{"tuple": leaves[0]}, {"dict": []}]},
            "outputs": {"tuple": leaves[1]},
        }
    try:
        manifest = json.loads(data)
        _check_tree(manifest["inputs"], ins)
        _check_tree(manifest["outputs"], outs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArtifact(f"the manifest cannot be read: {error!r}") from None
    return manifest  # type: ignore[no-any-return]


def _check_tree(tree: trees.Tree, count: int) -> None:
    ((kind, body),) = tree.items()
    if kind == "tensor":
        if not isinstance(body, int) or not 0 <= body < count:
            raise ValueError(f"tensor {body!r} of {count}")
    elif kind == "dict":
        for _, child in body:
            _check_tree(child, count)
    elif kind in ("tuple", "list"):
        for child in body:
            _check_tree(child, count)
    elif kind not in ("value", "size"):
        raise ValueError(f"unknown node {kind!r}")


def _is_plain(tree: trees.Tree) -> bool:
    """Whether arguments are tensors by position, in order, and nothing else."""
    try:
        args, kwargs = tree["tuple"]
        leaves = [leaf["tensor"] for leaf in args["tuple"]]
        return leaves == list(range(len(leaves))) and kwargs == {"dict": []}
    except (KeyError, ValueError, TypeError):
        return False
