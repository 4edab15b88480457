"""One class per mistake a user can make; each message says what to do about it.

Every class also derives from the built-in exception a Python programmer would expect
(``TypeError`` for a wrong type, ``LookupError`` for an unknown name), so both
``except DovetailError`` and ``except TypeError`` do the natural thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class DovetailError(Exception):
    """Anything dovetail raises on purpose."""


class DovetailWarning(UserWarning):
    """Anything dovetail warns about."""


class ExperimentalBackendWarning(DovetailWarning):
    """An experimental backend is used for the first time in this process."""


class FallbackWarning(DovetailWarning):
    """Something was handed to a slower path instead of failing; the message says why."""


class InterpretedKernels(FallbackWarning):
    """Generated kernels of a file run from their kernel IR, which is slower than their code."""


class CacheWarning(DovetailWarning):
    """The cache cannot be used as it was set up; what it would have given is compiled instead."""


class StaleWeights(DovetailWarning):
    """With ``check_weights``: a weight was written to in a way that nothing but its contents shows.

    The call that warns takes the new contents, as ``dovetail.refresh`` would have it do.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(names)}: written to without a sign of it (PyTorch did not count the "
            "write), so that without check_weights the old values would have been used; call "
            "dovetail.refresh(model) after such a write"
        )


class PrecompileWarning(DovetailWarning):
    """PyTorch's precompile keeps or restores nothing for a function, which is traced instead."""


# ---- registering a backend -----------------------------------------------------------------


class BackendNotCallable(DovetailError, TypeError):
    """What was given as a backend is neither a function nor a Backend subclass."""

    def __init__(self, obj: object) -> None:
        super().__init__(
            f"{obj!r} ({type(obj).__name__}) is not a backend: give a function "
            "(gm, example_inputs) -> callable, or a subclass of dovetail.Backend"
        )


class InvalidBackendName(DovetailError, ValueError):
    """A backend's name is empty, blank, or not a string."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"{name!r} is not a usable backend name: give a string of letters, digits, '_', '-' "
            "and '.', such as name='my_accel'"
        )


class BackendHasNoName(DovetailError, ValueError):
    """A Backend subclass declares no name and none was passed."""

    def __init__(self, cls: type) -> None:
        super().__init__(
            f"{cls.__module__}.{cls.__qualname__} has no name: set `name = 'my_accel'` in the "
            "class body, or pass name= to register_backend"
        )


class BackendNameTaken(DovetailError, ValueError):
    """Two backends want one name."""

    def __init__(self, name: str, holder: str, newcomer: str) -> None:
        super().__init__(
            f"the backend name {name!r} is taken by {holder}; {newcomer} must choose another "
            "(pass name= to register_backend, or rename the entry point)"
        )


class IncompleteBackend(DovetailError, TypeError):
    """A Backend subclass leaves an abstract method undefined."""

    def __init__(self, cls: type, missing: Iterable[str]) -> None:
        names = ", ".join(f"{m}()" for m in sorted(missing))
        super().__init__(
            f"{cls.__module__}.{cls.__qualname__} is not a complete backend: define {names} "
            "(see dovetail.Backend for what each must return)"
        )


class InvalidTags(DovetailError, TypeError):
    """Tags are a bare string, or hold something that is not a string."""

    def __init__(self, tags: object) -> None:
        hint = f"tags=({tags!r},)" if isinstance(tags, str) else "tags=('experimental',)"
        super().__init__(f"tags must be a collection of strings, not {tags!r}: write {hint}")


# ---- looking a backend up ------------------------------------------------------------------


class UnknownBackend(DovetailError, LookupError):
    """No backend has this name."""

    def __init__(self, name: object, known: Iterable[str], broken: Mapping[str, str]) -> None:
        known = sorted(set(known))
        message = f"no backend is called {name!r}{nearest(str(name), known)}; known backends: "
        message += ", ".join(known) or "none"
        if broken:
            message += "; plug-ins that do not load: "
            message += "; ".join(f"{n} ({why})" for n, why in sorted(broken.items()))
        super().__init__(message)


class BrokenPlugin(DovetailError, ImportError):
    """A plug-in is installed under this name but does not load, or is no backend."""

    def __init__(self, name: str, owner: str, reason: str) -> None:
        super().__init__(
            f"the backend {name!r} of {owner} does not load: {reason}; "
            "reinstall or uninstall that package, or choose another backend"
        )


class BackendUnavailable(DovetailError, RuntimeError):
    """The backend is installed but cannot run on this machine."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the backend {name!r} cannot run here: {reason}")


# ---- options -------------------------------------------------------------------------------


class UnknownOption(DovetailError, TypeError):
    """An option, mode or backend argument that does not exist."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        known = sorted(set(known))
        super().__init__(
            f"unknown {kind} {name!r}{nearest(str(name), known)}; "
            f"there is {', '.join(known) or 'none'}"
        )


class InvalidOption(DovetailError, TypeError):
    """An option of the wrong type or value."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(
            f"option {name!r} must be {expected}, not {value!r} ({type(value).__name__})"
        )


# ---- compiling -----------------------------------------------------------------------------


class PassFailed(DovetailError, RuntimeError):
    """A pass raised, returned nothing, or left a graph that is no longer valid."""

    def __init__(self, name: str, stage: str, problem: str) -> None:
        self.pass_name, self.stage = name, stage
        super().__init__(f"the {stage} pass {name!r} {problem}")


class VerificationFailed(DovetailError, RuntimeError):
    """With ``debug``: what a stage made breaks a rule of its form, a fault of dovetail's own."""

    def __init__(self, stage: str, problem: str, value: object) -> None:
        super().__init__(f"what the stage {stage!r} made is not valid: {problem}\n{value}")
        self.stage, self.problem, self.value = stage, problem, value


class UnknownPass(DovetailError, LookupError):
    """A pass is named that no stage holds."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = sorted(set(known))
        super().__init__(
            f"no pass is called {name!r}{nearest(name, known)}; there is {', '.join(known)}"
        )


class BackendFailed(DovetailError, RuntimeError):
    """A backend raised while compiling or loading a segment, and strict mode is on."""

    calls: tuple[str, ...] = ()  # the segment's, by name

    def __init__(self, backend: str, action: str, reason: str) -> None:
        super().__init__(
            f"the backend {backend!r} failed to {action} a segment: {reason} "
            "(strict=True; without it the segment falls back to the next backend)"
        )


class CompileFailed(DovetailError, RuntimeError):
    """A compiler has no code for a segment: it raised, crashed, or took more than it may."""


class BackendContract(DovetailError, TypeError):
    """A method of a Backend returned something it may not, or raised where it must answer."""

    def __init__(self, backend: str, method: str, problem: str) -> None:
        super().__init__(
            f"the backend {backend!r} breaks its contract: {method} {problem} "
            "(see dovetail.Backend for what each method must return)"
        )


class WrongOutputs(DovetailError, RuntimeError):
    """A backend's executable returned something other than what its segment promises."""

    def __init__(self, backend: str, problem: str) -> None:
        super().__init__(f"the executable of backend {backend!r} returned {problem}")


class MisdescribedNumbers(DovetailError, ValueError):
    """A quantised tensor holds numbers outside the range that its graph gives."""

    def __init__(self, dtype: str, least: int, greatest: int) -> None:
        super().__init__(
            f"a constant that the graph dequantizes as {dtype} holds numbers from {least} to "
            f"{greatest}: give quant_min and quant_max that hold all of them"
        )


class WrongResult(DovetailError, ArithmeticError):
    """Under option ``check``: a backend's result differs from PyTorch's."""

    def __init__(self, backend: str, problem: str, script: str = "") -> None:
        self.backend, self.script = backend, script
        how = f"; run {script} to see it alone" if script else ""
        super().__init__(f"the backend {backend!r} is wrong: {problem}{how}")


class UnknownOperator(DovetailError, LookupError):
    """A kernel is declared for an operator, or with a name, that PyTorch does not have."""

    def __init__(self, kind: str, name: object, near: Iterable[str], where: str = "") -> None:
        guesses = list(near)
        hint = f"; did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
        super().__init__(f"there is no {kind} {name!r}{where}{hint}")


class KernelFailed(DovetailError, RuntimeError):
    """A kernel raised an error, or gave a result of another shape or type than the operator's."""

    def __init__(self, backend: str, call: object, problem: str) -> None:
        super().__init__(f"the backend {backend!r} failed in its kernel of {call}: {problem}")


class UnsupportedGraph(DovetailError, RuntimeError):
    """A captured graph holds something dovetail cannot express; it goes to PyTorch whole."""


class ExportFailed(DovetailError, RuntimeError):
    """torch.export could not capture the model as one graph."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(
            f"cannot export {model} as one graph: {reason}\n"
            "Where that is a graph break (data-dependent control flow, unsupported calls), remove "
            "it, or use torch.compile(model, backend='dovetail'), which splits the graph there."
        )


class InvalidExampleInputs(DovetailError, TypeError):
    """The example inputs of ``dovetail.export`` are no tuple, or its keywords no dict."""


class GuardFailed(DovetailError, ValueError):
    """An exported program was called with inputs it was not exported for."""


class SizeError(DovetailError, ArithmeticError):
    """A size expression cannot be parsed or evaluated."""


# ---- programs and artifacts ----------------------------------------------------------------


class InvalidCompiledGraph(DovetailError, ValueError):
    """A compiled graph breaks a rule, or bytes hold none: what the verifier or the reader found."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


class InvalidProgram(DovetailError, ValueError):
    """A Program breaks a rule of its format: what the verifier, the parser or the reader found."""


class InvalidTarget(DovetailError, ValueError):
    """A text that describes no target."""


class InvalidLayout(DovetailError, ValueError):
    """A layout that does not give each element of a tensor a place, or a text that is none."""


class InvalidSchedule(DovetailError, ValueError):
    """A schedule that is not one of its kernel, or a text that is none."""


class InvalidArtifact(DovetailError, ValueError):
    """A file is no artifact, or a damaged one."""


class UnsupportedArtifact(DovetailError, RuntimeError):
    """A sound artifact that this build, machine or process cannot run; the message says why."""


class ArtifactNotFound(DovetailError, FileNotFoundError):
    """There is no file of this name, or it cannot be opened."""


class ArtifactChanged(DovetailError, RuntimeError):
    """A file was changed or cut short after it was loaded: load it again.

    Only constants that are mapped (``trust=True`` without ``copy=True``), or that had not been read
    yet, can change; all else is private.
    """


class UntrustedArtifact(DovetailError, PermissionError):
    """An artifact needs what only a trusted one may do; the message says what, and how to trust.

    Trust is a signature by a key of this user's, or the caller's word (``trust=True``).
    """


HOW_TO_TRUST = (
    "sign it with a key that you trust (dovetail sign), or vouch for the file "
    "(dovetail.load(path, trust=True), dovetail run --trust)"
)


class CannotSave(DovetailError, RuntimeError):
    """A compiled model holds something that a file cannot carry."""


class CannotWrite(DovetailError, OSError):
    """A file that a command was told to write cannot be written."""


class RunFailed(DovetailError, RuntimeError):
    """A kernel or a host operation failed while an artifact ran."""


class UnknownState(DovetailError, KeyError):
    """A loaded model keeps nothing of this name from call to call."""

    __str__ = Exception.__str__  # KeyError's is the repr of its argument


class IndexOutOfRange(RunFailed, IndexError):
    """An index held in a tensor lies outside the dimension it selects from."""


class IndexOutOfBounds(RunFailed):
    """The same, for operators of which PyTorch says so by a RuntimeError."""


class DividedByZero(RunFailed):
    """An integer held in a tensor was divided by zero."""


class OutOfMemory(DovetailError, MemoryError):
    """The runtime could not allocate what a call needs."""


class LimitExceeded(DovetailError, RuntimeError):
    """A call would take more work or memory than its file may (``max_work``, ``max_memory``)."""


class InvalidFactory(DovetailError, ValueError):
    """``module:factory`` names nothing, or the factory returns no model."""


class InvalidInput(DovetailError, ValueError):
    """An input or output file of ``dovetail run`` cannot be read, written or matched."""


class InvalidKey(DovetailError, ValueError):
    """A signing or verifying key cannot be read."""


class InvalidBundle(DovetailError, ValueError):
    """A file given to ``dovetail cache import`` is no bundle of entries, or a damaged one."""


class UntrustedBundle(DovetailError, PermissionError):
    """Nothing shows who made a bundle of cache entries, whose code would run."""


class CacheUnusable(DovetailError, OSError):
    """The ``dovetail cache`` command cannot use the cache's folder; the message says why."""


class UnknownCacheEntry(DovetailError, LookupError):
    """No entry of the cache, or more than one, has a key that begins like this."""


class NotKept(DovetailError, ValueError):
    """A compiled graph cannot be kept for another process; the message says why."""


class NotRestored(DovetailError, RuntimeError):
    """Kept code is not used here: it is damaged, or made for something else."""


# ---- plug-ins in C -------------------------------------------------------------------------


class PluginNotFound(DovetailError, FileNotFoundError):
    """There is no library of this name, or an artifact runs on a plug-in that is not loaded."""


class InvalidPlugin(DovetailError, ImportError):
    """A file is no library, no plug-in, or one that breaks the rules of dovetail_plugin.h."""


class IncompatiblePlugin(DovetailError, ImportError):
    """A plug-in of another version of the interface, or without what an artifact needs of it."""


class PluginFailed(DovetailError, RuntimeError):
    """A function or kernel of a plug-in failed; the message names the plug-in and the kernel."""


class DeviceLost(PluginFailed):
    """A plug-in's device is gone. The next call opens it again and sends it what it needs."""


class DeviceTimeout(DeviceLost):
    """A device has not finished what it was given in DOVETAIL_DEVICE_TIMEOUT seconds."""


class PluginLeak(DovetailWarning, ResourceWarning):
    """A plug-in holds device memory after everything was given back to it."""


class ScaffoldExists(DovetailError, FileExistsError):
    """``dovetail new`` was pointed at a folder that holds something."""


class InvalidScaffoldName(DovetailError, ValueError):
    """``dovetail new`` was given a name that no module can have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} cannot name a package and its module: give lower-case letters, digits and "
            "'_', a letter first, such as my_accel"
        )


class ScaffoldNameTaken(InvalidBackendName):
    """``dovetail new`` was given a name that something else has already."""

    def __init__(self, name: str, holder: str) -> None:
        ValueError.__init__(
            self, f"a new package cannot be called {name!r}, as {holder} is: choose another name"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the closest known name, or nothing."""
    import difflib  # only mistakes need it

    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""
