"""The Backend class, on one page: everything a backend author implements."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.errors import InvalidOption
from dovetail.history import Measured
from dovetail.passes.base import Passes

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment

# A function as Dynamo has it: (gm, example_inputs) -> callable.
CompilerFn = Callable[..., Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run on this machine, and why not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


def torch_available() -> Availability:
    """The answer of a backend that needs PyTorch and nothing else."""
    from dovetail.capture._torch.dynamo_registry import is_installed

    return Availability(True) if is_installed() else Availability(False, "PyTorch is not installed")


@dataclass(frozen=True, slots=True)
class Support:
    """A backend's answer for one call: yes with a cost, or no with a reason.

    ``cost`` is an estimate in seconds, 0 when there is none. Placement takes the first backend
    that says yes, unless a later one says yes too and both give costs, and the later one's is less.
    """

    ok: bool
    reason: str = ""
    cost: float = 0.0

    def __bool__(self) -> bool:
        return self.ok

    @staticmethod
    def yes(cost: float = 0.0) -> Support:
        """The call is supported."""
        return Support(True, cost=cost)

    @staticmethod
    def no(reason: str) -> Support:
        """The call is refused; the reason is shown to the user."""
        return Support(False, reason)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The ways in which a backend can compute a call, for ``mode="max-autotune"``.

    ``taken`` is the one that its rules take, ``reason`` why. Of the ``others`` each is a name that
    ``OpCall.candidate`` may have. ``estimates`` are the cost model's seconds, by name.
    """

    taken: str
    reason: str = ""
    others: tuple[str, ...] = ()
    estimates: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one copy between the host and a backend's own memory costs; by default nothing."""

    latency_seconds: float = 0.0
    bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        _check_rates(self, self.latency_seconds, self.bytes_per_second)

    def seconds(self, copies: int, size: int) -> float:
        """The time of so many copies of so many bytes together."""
        return copies * self.latency_seconds + size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a call takes, roughly: a fixed part, and the longer of arithmetic and memory."""

    call_seconds: float = 0.0
    flops_per_second: float = math.inf
    bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        _check_rates(self, self.call_seconds, self.flops_per_second, self.bytes_per_second)

    def seconds(self, flops: int, size: int) -> float:
        """The time of a call with so many operations that touches so many bytes."""
        return self.call_seconds + max(flops / self.flops_per_second, size / self.bytes_per_second)


def _check_rates(owner: object, seconds: float, *rates: float) -> None:
    if not seconds >= 0 or not all(rate > 0 for rate in rates):
        raise InvalidOption(type(owner).__name__, owner, "times of 0 or more and rates above 0")


@dataclass(frozen=True, slots=True)
class Blob:
    """A compiled segment: bytes that any process can load, or (``live``) an object of this one."""

    data: bytes = b""
    live: Any = None
    # What ``load`` would make of the bytes, where ``compile`` has it at hand; never stored.
    ready: Any = field(default=None, compare=False, repr=False)

    @property
    def is_portable(self) -> bool:
        """Whether the blob can be written to a file."""
        return self.live is None


# A loaded segment: it gets the segment's inputs in order and may empty the list.
Run = Callable[[list[Any]], Sequence[Any]]


class Fallback(Protocol):
    """Runs a segment by other means where its inputs are not what the graph says of them."""

    def __call__(self, error: Any, inputs: list[Any], /) -> list[Any]:
        """The segment's outputs, given what was wrong with its inputs."""

    def rewinding(self, run: Callable[..., list[Any]], /) -> Callable[..., list[Any]]:
        """``run`` such that nothing can tell that it was tried once it has failed."""


class Memory(Protocol):
    """Memory of a device's own."""

    def reaches(self, other: Any, /) -> bool:
        """Whether what lies there can be had in ``other`` with no way over the host."""


class Executable(ABC):
    """A loaded segment that can say more of itself than a plain function.

    ``Backend.load`` may return a function instead: the defaults below then hold for it.
    """

    # How long each call took, where somebody measures it.
    measured: Measured | None = None
    # The memory that its results may stay in (``keep``); None: they are tensors of PyTorch's.
    memory: Memory | None = None

    @abstractmethod
    def __call__(self, inputs: list[Any], /) -> Sequence[Any]:
        """Run on the segment's inputs, whose list may be emptied; return its outputs in order."""

    def fall_back_on(self, fallback: Fallback) -> None:  # noqa: B027  # a default, not a stub
        """Run this instead where inputs are not as described; ignored unless overridden."""

    def replay(self) -> None:  # noqa: B027  # a default, not a stub
        """Record calls and replay them, as CUDA graphs do; ignored unless overridden."""

    def picking(self, positions: Sequence[int]) -> Run | None:  # noqa: ARG002
        """The same function of a longer list, whose ``positions`` hold the segment's inputs.

        It checks the number of its outputs itself. None: there is no faster form of this kind.
        """
        return None

    def binding(self, positions: Sequence[int], values: Mapping[int, Any]) -> Run | None:  # noqa: ARG002
        """The same of a list without the inputs that always have these values, by position.

        None: there is no faster form of this kind.
        """
        return None

    def transfers(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Positions of the inputs sent to the device and of the outputs fetched; None: all."""
        return None

    def measure(self) -> Callable[[], list[tuple[str, float]]]:
        """Measure each instruction from now on; what tells their names and least seconds so far.

        It tells of none where the code consists of nothing that has a name.
        """
        return list

    def keep(  # noqa: B027  # a default, not a stub
        self, outputs: frozenset[int], fetched: frozenset[int] = frozenset()
    ) -> None:
        """Leave these outputs in ``memory`` from now on, beside those that stay already.

        Of them, those ``fetched`` are read elsewhere too, and copied then.
        """

    def kept(self) -> frozenset[int]:
        """The outputs that stay in ``memory``."""
        return frozenset()


class FunctionExecutable(Executable):
    """A plain function as an Executable."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, inputs: list[Any], /) -> Sequence[Any]:
        """Call the function."""
        return self.run(inputs)


def _remembering(init: Callable[..., None]) -> Callable[..., None]:
    """``__init__`` such that the instance has the arguments of the outermost one as ``given``."""

    @functools.wraps(init)
    def remember(self: Backend, *args: Any, **options: Any) -> None:
        if "given" not in vars(self):
            self.given = (args, options)
        init(self, *args, **options)

    return remember


class Backend(ABC):
    """A place where operations run.

    Subclasses must set ``name`` and define ``supports``, ``compile`` and ``load``; the rest has
    defaults that serve. Keyword arguments of ``__init__`` are the backend's own options.
    """

    name: ClassVar[str]
    tags: ClassVar[frozenset[str]] = frozenset()
    # The torch device whose tensors its segments take and give, each as it is, with no copy.
    # Calls on tensors of others it never sees, unless it ``runs_anywhere``, as PyTorch itself does.
    device: ClassVar[str] = "cpu"
    runs_anywhere: ClassVar[bool] = False
    # Whether the result of a view is a view on its argument's memory, as PyTorch's is; else views
    # that PyTorch takes an address from, when a graph returns them, are not this backend's.
    keeps_views: ClassVar[bool] = False
    # A backend that copies them to and from memory of its own says what a copy costs; segments
    # that save less than their copies cost then go to the next backend. None: it copies nothing.
    transfer: Transfer | None = None
    # For estimates where ``supports`` gives no cost. None: the host's, or unknown where it copies.
    speed: Speed | None = None
    # Composite operators that inference graphs should keep for this backend where ``supports``
    # claims the call, such as "aten.linear.default". (Training graphs hold what autograd left.)
    composites: ClassVar[frozenset[str]] = frozenset()
    # How another process makes this class, where importing it does not: a function, "module:name",
    # and its keyword arguments, all plain values.
    made_by: ClassVar[tuple[str, Mapping[str, Any]] | None] = None
    # The options that the registry made it with; None: somebody else made it.
    made_with: Mapping[str, Any] | None = None
    # Whether its code may be for this very processor. False: for any of the processor's level, or
    # for none; then machines of a level share a cache.
    exact_processor: ClassVar[bool] = True
    # Whether segments may hold in-place variants of operators where that saves a copy.
    writes_in_place: ClassVar[bool] = False
    # The arguments an instance was made with, which enter cache keys.
    given: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), MappingProxyType({}))

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let instances remember their arguments."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]
        if "compile" in vars(cls) and "exact_processor" not in vars(cls):
            cls.exact_processor = True  # another compiler than the one that it inherits

    def available(self) -> Availability:
        """Whether this backend can run here; called before first use."""
        return Availability(True)

    def fingerprint(self) -> str:
        """What compiled code depends on beside sources and options: toolchain and target.

        Enters cache keys, where the backend's class, the sources of its package (``sources.py``
        says which) and its options stand already.
        """
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @abstractmethod
    def supports(self, call: OpCall) -> Support:
        """Whether this backend takes ``call``; asked for every call of every graph.

        By way of ``keeps_whole`` it is also asked during capture, when ``call.output`` is not
        known yet and is None.
        """

    def keeps_whole(self, call: OpCall) -> bool:
        """Whether an operator that could be decomposed should reach this backend as it is.

        By default what it supports. The call's ``output`` is not known yet.
        """
        return bool(self.supports(call))

    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """Operator overload → decomposition, for what this backend does not claim.

        The default is PyTorch's core ATen set.
        """
        from dovetail.capture.decompose import core_decompositions

        return core_decompositions()

    def quick(self) -> Backend | None:
        """A backend of this kind that compiles sooner what runs slower, for ``progressive``.

        This one loads its code. None: there is none.
        """
        return None

    def alone(self) -> Backend:
        """This backend for files without PyTorch: it leaves nothing to it that it can compute."""
        return self

    def passes(self) -> Passes:
        """Passes of this backend's own, run after the built-in ones of each stage."""
        return Passes()

    def lay_out(self, segment: Segment, once: frozenset[str]) -> Segment:  # noqa: ARG002
        """The segment with tensors inside it laid out as this backend runs best.

        Inputs and outputs keep their strides; changes of layout are calls. Those that depend on
        the inputs ``once`` alone run once, not at each call.
        """
        return segment

    def candidates(self, call: OpCall, once: frozenset[str]) -> Candidates | None:  # noqa: ARG002
        """The ways to compute a call, few; None: there is one alone, or nothing to say of it.

        Asked of segments that are laid out and not packed; ``once`` as for ``lay_out``.
        """
        return None

    def pack(self, segment: Segment, once: frozenset[str]) -> Segment:  # noqa: ARG002
        """The segment, laid out, with operands copied to where its calls' kernels read them best.

        Copies are calls, as in ``lay_out``. A call's ``candidate`` may say what it is packed for.
        """
        return segment

    def prepare(self) -> None:  # noqa: B027  # a default, not a stub
        """Load what ``compile`` needs; a worker process does this before there is a segment."""

    @abstractmethod
    def compile(self, segment: Segment) -> Blob:
        """Turn a segment of supported calls into code.

        ``dovetail.ir.verify.is_verifying()`` tells whether option ``debug`` is on.
        """

    @abstractmethod
    def load(self, blob: Blob) -> Run:
        """Make a compiled segment runnable: an ``Executable``, or a function of that form."""

    @classmethod
    def reserved_names(cls) -> frozenset[str]:
        """Identifiers that generated code for this backend must not use."""
        return frozenset()


class FunctionBackend(Backend):
    """A function ``(gm, example_inputs) -> callable`` as a Backend: it takes any segment."""

    name = "function"
    runs_anywhere = True
    keeps_views = True

    def __init__(self, name: str, fn: CompilerFn) -> None:
        self.name = name  # type: ignore[misc]  # one class serves every function
        self.fn = fn

    def fingerprint(self) -> str:
        """The function's module and name."""
        return f"{self.fn.__module__}.{getattr(self.fn, '__qualname__', self.name)}"

    def supports(self, call: OpCall) -> Support:  # noqa: ARG002
        """A function takes whatever it is given."""
        return Support.yes()

    def compile(self, segment: Segment) -> Blob:
        """Hand the function an FX graph of the segment; its result lives in this process only."""
        from dovetail.capture.to_fx import example_inputs, graph_module

        return Blob(live=self.fn(graph_module(segment), example_inputs(segment)))

    def load(self, blob: Blob) -> Run:
        """Call what the function returned."""
        fn = blob.live
        return lambda inputs: fn(*inputs)
