"""``dovetail.load``: a file as a function. Needs no torch unless the file calls it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dovetail.errors import (
    ArtifactChanged,
    ArtifactNotFound,
    DovetailError,
    FallbackWarning,
    InterpretedKernels,
    InvalidOption,
    PluginNotFound,
    UnsupportedArtifact,
)
from dovetail.file import container
from dovetail.runtime import tree as trees
from dovetail.runtime.manifest import read_manifest
from dovetail.runtime.state import State

if TYPE_CHECKING:
    from dovetail.runtime.device import CallerDevice, OnDevice, Stream

INTERPRETED = -2  # what ``Artifact.code()`` says where kernels are interpreted
BUILT_IN = -1  # the same where built-in kernels serve instead
_UNLIMITED = 2**64 - 1
_REFUSALS = {  # DVT_CODE_…
    1: "no trusted key signed it",
    2: "it is not for this machine (save with targets=[…] to have code for others)",
    3: "this system does not let a process make memory executable (MDWE, SELinux's execmem)",
}
CHECK_CONSTANTS, TRUST, INSPECT, MAY_OVERLAP, COPY, CODE_ONLY = 1, 2, 4, 8, 16, 32
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
    max_work: float | None = None,
    max_memory: float | None = None,
    regenerate: Regenerate | None = None,
    opener: Callable[..., Any] | None = None,
) -> Loaded:
    """Read and verify an artifact; see ``dovetail.load``.

    ``opener`` is what a pickle of the result calls, by its name, with the same path and options.
    """
    if not Path(path).exists():
        raise ArtifactNotFound(f"there is no file {os.fspath(path)!r}")
    native = open_native(
        os.fspath(path),
        flags=(TRUST if trust else 0) | (COPY if copy else 0),
        keys=trusted_keys,
        plugins=plugins,
        regenerate=regenerate,
        limits=(_limit("max_work", max_work), _limit("max_memory", max_memory)),
    )
    given = {
        "trusted_keys": trusted_keys if trusted_keys is None else [*trusted_keys],
        "plugins": [os.path.abspath(each) for each in plugins],  # noqa: PTH100
        "trust": trust,
        "copy": copy,
        "max_work": max_work,
        "max_memory": max_memory,
    }
    return Loaded(native, Origin(os.path.abspath(path), given, opener))  # noqa: PTH100


def _limit(name: str, value: float | None) -> int:
    """A limit as C takes it: 0 for the default, the greatest number for none."""
    if value is None:
        return 0
    if not isinstance(value, int | float) or not value > 0:
        raise InvalidOption(name, value, "a positive number (math.inf: no limit)")
    return int(min(value, _UNLIMITED))


# What a file that is opened must have as its digest; None: anything.
_expected: ContextVar[bytes | None] = ContextVar("expected", default=None)


def open_native(
    source: str | bytes,
    *,
    flags: int = 0,
    keys: Sequence[bytes | str] | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    regenerate: Regenerate | None = None,
    limits: tuple[int, int] = (0, 0),
) -> Any:
    """The native artifact, with its host operations resolved where torch is in the process."""
    from dovetail.runtime.trust import public_keys, trusted_keys

    known = trusted_keys() if keys is None else public_keys(keys)
    host = None if flags & INSPECT else _host()
    # Read once: however often it is opened below, it is what was verified here.
    read, expected = _read(source), _expected.get()
    _expected.set(None)  # blobs in the file that are artifacts themselves have other digests
    if expected is not None and _open(read, INSPECT, b"", None, (), limits).digest() != expected:
        raise ArtifactChanged(f"{source!r} is not the file that it was when the model was pickled")
    native = _open(read, flags, b"".join(known), host, plugins, limits)
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
    return f"its native code is not used, as {_REFUSALS[native.code_refusal()]}"


def _read(source: str | bytes) -> Any:
    try:
        from dovetail import _native
    except ImportError as error:
        raise UnsupportedArtifact(_why_no_runtime(error)) from None
    return _native.Source(source)


def _why_no_runtime(error: ImportError) -> str:
    import sysconfig

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "dovetail does not support free-threaded Python, which loads no extensions of the "
            "stable ABI: use the ordinary build of this version"
        )
    if "cannot import name" in str(error) or isinstance(error, ModuleNotFoundError):
        return "the C runtime is not built: install dovetail, or run setup.py build_ext --inplace"
    return str(error)


def _open(
    source: Any,
    flags: int,
    keys: bytes,
    host: Any,
    plugins: Sequence[str | os.PathLike[str]],
    limits: tuple[int, int],
) -> Any:
    """Open with the plug-ins of this process, and again with those that packages bring."""
    from dovetail import _native
    from dovetail.runtime.plugins import brought_plugins, known_plugins

    if flags & INSPECT:
        return _native.Artifact(source, flags, keys)
    known = tuple(library.native for library in known_plugins(plugins))
    try:
        return _native.Artifact(source, flags, keys, host, known, *limits)
    except PluginNotFound:
        looked_at = _native.Artifact(source, flags | INSPECT, keys)
    needed = [name for name, _, _ in looked_at.devices()]
    libraries = brought_plugins(needed, trusted=looked_at.trusted())
    brought = tuple(library.native for library in libraries)
    return _native.Artifact(source, flags, keys, host, brought + known, *limits)


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
    try:
        from dovetail.runtime.host import HostOperators, use_torch_threads
    except ModuleNotFoundError as error:
        if error.name != "dovetail.runtime.host":
            raise
        return None  # dovetail-runtime, which calls no operator of PyTorch
    use_torch_threads()
    return HostOperators()


class Origin(NamedTuple):
    """Where an artifact was loaded from, to load it again in another process."""

    path: str
    options: dict[str, Any]
    opener: Callable[..., Any] | None


class Loaded:
    """An artifact as a function. Any number of threads may call it at one time.

    ``copy.copy`` and ``copy.deepcopy`` give one with a state of its own, which starts as this one's
    and shares all else: one for each user's sequence, say. A pickle holds the file's path, its
    digest and the state.
    """

    def __init__(self, native: Any, origin: Origin | None = None) -> None:
        self.native = native
        self._origin = origin
        self._run = native.run
        data = native.section(container.MANIFEST)
        self._manifest = read_manifest(data, native.inputs(), native.outputs())
        self.manifest = self._manifest.values
        self._inputs, self._outputs = self._manifest.inputs, self._manifest.outputs
        # Tensors by position and one tensor back: the call goes straight to C.
        self._plain = _is_plain(self._inputs)
        self._single = self._outputs == {"tensor": 0}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on inputs of the kind the model was exported for."""
        if self._plain and not kwargs:
            results = self._run(*args)
            if self._single:
                return results[0]
            return trees.unflatten(self._outputs, results, lambda text: self._size(text, args))
        return self.run_with(self._run, args, kwargs)

    def run_with(
        self, run: Callable[..., list[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The same with another way to run the tensors that go in."""
        flat: list[Any] = []
        trees.flatten(self._inputs, (args, kwargs), flat)
        results = run(*flat)
        return trees.unflatten(self._outputs, results, lambda text: self._size(text, flat))

    def on(self, place: Stream | CallerDevice) -> OnDevice:
        """This artifact with its results on a device; on a stream it returns before they are done.

        ``run.on(stream)(x)`` takes tensors of the host and of the device. Results that the device
        makes are ``DeviceTensor``s, each with the event that it is ready at; those that the host
        makes are there.
        """
        from dovetail.runtime.device import OnDevice

        return OnDevice(self, place)

    def device(self, name: str | None = None) -> CallerDevice:
        """A device that it runs on, by the plug-in's name; the only one where none is given."""
        from dovetail.runtime.device import device_named

        used = {name for name, _, _ in self.native.devices()}
        plugins = [each for each in self.native.plugins() if each.info()[0] in used]
        return device_named(plugins, name)

    def _size(self, text: str, given: Sequence[Any]) -> int:
        from dovetail.ir.size import VALUE, evaluate

        symbols = {
            name: int(given[position] if axis == VALUE else given[position].shape[axis])
            for name, position, axis in self._manifest.symbols
        }
        return evaluate(self._manifest.sizes[text], symbols)

    @property
    def holds_graph(self) -> bool:
        """Whether its program is all blob: the graph of a model that PyTorch runs, perhaps."""
        return not self.native.inputs() and not self.native.outputs()

    @property
    def state(self) -> State:
        """What the model keeps from call to call, by name: to read, to write, to reset."""
        return State(self.native)

    def __copy__(self) -> Self:
        return type(self)(self.native.clone(), self._origin)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._origin is None or self._origin.opener is None:
            raise UnsupportedArtifact(
                "only an artifact that dovetail.load has read from a file can be pickled"
            )
        state = [self.native.state_bytes(i) for i in range(len(self.native.states()))]
        path, options, opener = self._origin
        return _load_again, (opener, path, options, self.native.digest(), state)

    @property
    def inputs(self) -> list[tuple[str, int, int, tuple[int, ...]]]:
        """Name, DLPack type code, bits and shape (-1: dynamic) of each tensor that goes in."""
        return self.native.inputs()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<dovetail artifact {self.manifest.get('name', '')!r}>"


def _load_again(
    opener: Callable[..., Any],
    path: str,
    options: dict[str, Any],
    digest: bytes,
    state: list[bytes],
) -> Loaded:
    """What was pickled, from the same file: one of other contents is refused before it is used."""
    token = _expected.set(digest)
    try:
        loaded: Loaded = opener(path, **{**options, "copy": True})  # constants are checked, too
    finally:
        _expected.reset(token)
    for number, contents in enumerate(state):
        loaded.native.write_state(number, contents)
    return loaded


def _is_plain(tree: trees.Tree) -> bool:
    """Whether arguments are tensors by position, in order, and nothing else."""
    try:
        args, kwargs = tree["tuple"]
        leaves = [leaf["tensor"] for leaf in args["tuple"]]
        return leaves == list(range(len(leaves))) and kwargs == {"dict": []}
    except (KeyError, ValueError, TypeError):
        return False
