"""The process that is attacked: it makes hostile calls and may die of one.

Run as ``python -m tests.attack.child CALLS.json PAIRS LIMIT FILE``, with guard.c loaded before
libc. It writes a line to file number FILE before each call, so that whoever started it knows which
one it died of.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from dovetail.runtime.host_checks import checked
from tests.attack.mutate import some, variants
from tests.attack.samples import Call, decode

SECONDS = 5  # a call that takes longer ends the process


def say(*words: Any) -> None:
    """One line to whoever started this process, at once."""
    os.write(int(sys.argv[4]), (" ".join(map(str, words)) + "\n").encode())


def attack(call: Call, guard: Callable[[int, int], None]) -> str | None:
    """What is wrong with how an operator takes a call; None if it refuses it or answers."""
    answers = []
    for fill in (0xA5, 0x5B):
        guard(1, fill)
        try:
            answer = _answer(call)
        finally:
            guard(0, 0)
        if not isinstance(answer, tuple):
            return answer
        answers.append(answer)
    return None if answers[0] == answers[1] else "its result holds memory that nothing wrote"


def _answer(call: Call) -> tuple[Any, ...] | str | None:
    """The bytes of the results; None where the call is refused."""
    op, args, kwargs = call
    given = decode(args), {key: decode(value) for key, value in kwargs.items()}
    target: Any = torch.ops
    for part in op.split("."):
        target = getattr(target, part)
    target = checked(op, target)
    before = [_bytes(t) for t in tree_iter(given) if isinstance(t, torch.Tensor)]
    torch.manual_seed(0)
    try:
        made = target(*given[0], **given[1])
        results = tuple(_bytes(t) for t in tree_iter(made))
    except Exception:
        return None
    if before != [_bytes(t) for t in tree_iter(given) if isinstance(t, torch.Tensor)]:
        return "it writes to its arguments"
    return results


def _bytes(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.layout != torch.strided or value.device.type != "cpu" or value.numel() > 1 << 22:
        return str(value.layout), str(value.device), tuple(value.shape)
    plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
    held = ctypes.string_at(plain.data_ptr(), plain.nbytes) if plain.nbytes else b""
    return str(plain.dtype), tuple(plain.shape), held


def main() -> None:
    """Make every variant of every call."""
    path, pairs, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    guard = ctypes.CDLL(None).guard_enable
    for place, call in enumerate(json.loads(Path(path).read_text())):
        for told, variant in some(variants(tuple(call), pairs), limit):
            say("call", place, told)
            signal.alarm(SECONDS)
            problem = attack(variant, guard)
            signal.alarm(0)
            if problem is not None:
                say("problem", place, problem)
    say("end")


if __name__ == "__main__":
    main()
