"""What in a file only a trusted one may do, in words: for who saves, inspects or verifies it."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.ir.host_operators import unlisted
from dovetail.ir.program import BlobCall, Program


def needs_trust(host_ops: Iterable[str], owners: Iterable[str], *, bare_code: bool) -> list[str]:
    """Why a file does not run unsigned; empty if it does.

    ``owners`` are those of its blobs, ``bare_code`` whether it has native code and no kernel IR.
    """
    reasons = []
    refused = unlisted(host_ops)
    if refused:
        reasons.append(f"it calls {', '.join(refused)}")
    reasons += [f"it holds code that {owner!r} compiled" for owner in sorted(set(owners))]
    if bare_code:
        reasons.append("it holds native code without kernel IR")
    return reasons


def program_needs_trust(program: Program) -> list[str]:
    """The same for a program that is about to be written, whose kernels always have kernel IR."""
    owners = [i.owner for i in program.instructions if isinstance(i, BlobCall)]
    return needs_trust(program.host_ops(), owners, bare_code=False)


def verdict(reasons: list[str]) -> str:
    """One line: whether a file runs unsigned, and why not."""
    if not reasons:
        return "runs unsigned"
    return f"runs only signed by a trusted key, or with trust=True: {'; '.join(reasons)}"
