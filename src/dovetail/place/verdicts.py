"""Who takes a call: every backend of the list is asked, and every answer is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dovetail.backend import Backend, Support
from dovetail.errors import BackendContract
from dovetail.ir import OpCall

_YES = Support.yes()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the ways to compute a call its backend takes, and why.

    ``seconds`` are those measured, ``estimates`` the cost model's, by the candidates' names;
    ``taken`` is what the rules take where nothing was measured.
    """

    chosen: str
    reason: str
    seconds: tuple[tuple[str, float], ...] = ()
    estimates: tuple[tuple[str, float], ...] = ()
    taken: str = ""


@dataclass(slots=True)
class Verdict:
    """Where one call runs, and what every backend but the last, which takes all, answered.

    Where a backend took a call and something else kept it from running there (it would not pay
    for its copies, its compiler failed), its answer says that instead.
    """

    call: str
    op: str
    backend: str
    answers: tuple[tuple[str, Support], ...] = ()
    selection: Selection | None = None  # of several ways to compute it, where somebody asked

    @property
    def refusals(self) -> tuple[tuple[str, str], ...]:
        """Each backend that does not run the call, and why."""
        return tuple((name, answer.reason) for name, answer in self.answers if not answer)

    def answer_of(self, backend: str) -> Support | None:
        """What a backend said, or None of the last, which is not asked."""
        return next((answer for name, answer in self.answers if name == backend), None)

    def after_failures(self, backend: str, failures: Iterable[tuple[str, str]]) -> Verdict:
        """The verdict once others failed to compile the call's segment and ``backend`` did."""
        failed = {name: f"failed to compile: {reason}" for name, reason in failures}
        answers = (
            (name, replace(answer, ok=False, reason=failed[name]) if name in failed else answer)
            for name, answer in self.answers
        )
        return replace(self, backend=backend, answers=tuple(answers))


@dataclass(slots=True)
class Choice:
    """The answers for one call, and the position in the list of the backend that has it."""

    answers: list[Support]
    chosen: int

    def next_after(self, position: int) -> int:
        """Who has the call if the backend at ``position`` and those before it do not."""
        later = self.answers[position + 1 :]
        return position + 1 + best(later)

    def move(self, to: int, reason: str) -> None:
        """Give the call to another, with the reason in the answer of the one that had it."""
        self.answers[self.chosen] = replace(self.answers[self.chosen], ok=False, reason=reason)
        self.chosen = to

    def takes(self, position: int) -> bool:
        """Whether a backend of the list takes the call; the last always does."""
        return position == len(self.answers) or bool(self.answers[position])

    def answer(self, position: int) -> Support:
        """What the backend at ``position`` said."""
        return self.answers[position] if position < len(self.answers) else _YES


def ask(call: OpCall, backends: Sequence[Backend]) -> Choice:
    """Every backend's answer for a call; the last is not asked, for it must take all."""
    answers = [_answer(backend, call) for backend in backends]
    return Choice(answers, best(answers))


def best(answers: Sequence[Support]) -> int:
    """The first yes, unless a later one has a lower cost and both gave one; else the length."""
    found = len(answers)
    for position, answer in enumerate(answers):
        if answer.ok:
            if found == len(answers) or 0 < answer.cost < answers[found].cost:
                found = position
    return found


def _answer(backend: Backend, call: OpCall) -> Support:
    try:
        answer = backend.supports(call)
    except Exception as error:  # a vendor's code may raise anything
        problem = f"raised {type(error).__name__}: {error}"
        raise BackendContract(backend.name, f"supports({call.op})", problem) from error
    if not isinstance(answer, Support):
        raise BackendContract(backend.name, f"supports({call.op})", f"returned {answer!r}")
    if answer.ok and not backend.runs_anywhere:
        elsewhere = _elsewhere(call, backend.device)
        if elsewhere:
            return Support.no(f"a tensor is on {elsewhere}, and it runs on {backend.device}")
    return answer


def _elsewhere(call: OpCall, device: str) -> str:
    """A device that a tensor of the call is on and that is not of this kind; empty: none is."""
    kind = device.partition(":")[0]
    for desc in (*call.inputs, *call.outputs):
        if desc.device != kind and desc.device.partition(":")[0] != kind:
            return desc.device
    return ""
