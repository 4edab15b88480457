"""Verification of what each stage makes: on where option ``debug`` is, and free where it is off.

A stage calls ``verify_stage("schedule", kernel, verify_kernel)`` on what it hands to the next one.
Whoever compiles switches it on with ``verifying``, also for the backends that it calls: their
``compile`` takes nothing but a segment, so it travels with the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from dovetail.errors import DovetailError, VerificationFailed

T = TypeVar("T")
_on: ContextVar[bool] = ContextVar("verifying", default=False)


def is_verifying() -> bool:
    """Whether the compilation under way is to verify what its stages make."""
    return _on.get()


@contextmanager
def verifying(on: bool = True) -> Iterator[None]:
    """Verify, or not, what stages make meanwhile in this thread."""
    before = _on.set(on)
    try:
        yield
    finally:
        _on.reset(before)


def requirement(error: type[DovetailError]) -> Callable[[bool, str], None]:
    """A check that raises ``error`` with the problem unless a condition holds."""

    def require(condition: bool, problem: str) -> None:
        if not condition:
            raise error(problem)

    return require


def verify_stage(stage: str, value: T, check: Callable[[T], object]) -> T:
    """``value``, which ``check`` has seen where verification is on.

    What it raises of dovetail's own errors becomes VerificationFailed, which names the stage.
    """
    if _on.get():
        try:
            check(value)
        except DovetailError as error:
            raise VerificationFailed(stage, str(error), value) from error
    return value
