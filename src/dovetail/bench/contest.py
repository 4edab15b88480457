"""Rivals that take turns: each has a process, which waits while the others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from dovetail.bench.results import Figures

TURNS = 5  # of each rival in a round
# What a smaller processor than this one's is called by those that can be held to it.
PROCESSORS = {
    "x86-64-v3": {
        "DOVETAIL_PROCESSOR": "x86-64-v3",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}
# Engines that choose by what the processor can do, whatever they are told, and the file that says
# of a copy that it cannot see more (``benchmarks/hold_rivals.py``).
NOT_HELD = frozenset({"onnxruntime", "openvino"})
HELD = "held_to"


@dataclass(frozen=True)
class BenchSettings:
    """How each case is measured."""

    threads: int
    rounds: int
    seconds: float  # of steady state, a process
    warm: bool  # whether a second process finds the first one's caches
    device: str = "cpu"
    frozen: bool = False  # weights are constants
    clock: str = "elapsed"
    trains: bool = False  # a call is a training step
    processor: str = ""  # a smaller one than this machine's


class _Process:
    """One rival, compiled, waiting to be told for how long to run."""

    def __init__(self, case: str, rival: str, settings: BenchSettings, cache: str) -> None:
        command = [sys.executable, "-m", *_worker(case, rival, settings)]
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=_environment(settings, cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.found = self._answer()

    def measure(self, seconds: float) -> None:
        """Keep the least of each figure, and the memory that it has come to."""
        assert self._process.stdin is not None
        if self.found is None:
            return
        try:
            print(seconds, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self.found = None
            return
        new, before = self._answer(), self.found
        self.found = None if new is None else {**before, **_least(before, new)}

    def _answer(self) -> Figures | None:
        """One line of its output; None, and its errors are shown, where it has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        self._process.wait()
        self._errors.seek(0)
        sys.stderr.write(self._errors.read()[-1500:] + "\n")
        return None

    def close(self) -> None:
        """End it: it has no more input."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()


def _least(before: Figures, new: Figures) -> Figures:
    peak = {"peak_mb": new["peak_mb"]}
    return {key: min(value, before.get(key, value)) for key, value in new.items()} | peak


def measure_round(
    case: str, rivals: Sequence[str], settings: BenchSettings
) -> Iterator[tuple[str, Figures | None]]:
    """What each rival took, None where it failed.

    Every first call starts from empty caches and runs while the other processes wait; then all take
    turns; then new processes find the caches that the first ones have filled.
    """
    with tempfile.TemporaryDirectory() as folder:
        caches = {rival: f"{folder}/{rival}" for rival in rivals}
        running: dict[str, _Process] = {}
        try:
            for rival in rivals:
                running[rival] = _Process(case, rival, settings, caches[rival])
            for _ in range(TURNS):
                for process in running.values():
                    process.measure(settings.seconds / TURNS)
        finally:
            for process in running.values():
                process.close()
        for rival, process in running.items():
            found = process.found
            if found is not None and settings.warm and rival != "eager":
                again = _Process(case, rival, settings, caches[rival])
                again.close()
                found = None if again.found is None else {**found, "warm": again.found["first"]}
            yield rival, found


def _worker(case: str, rival: str, settings: BenchSettings) -> list[str]:
    if settings.device == "cuda":
        return ["dovetail.bench.gpu_worker", case, rival]
    how = "frozen" if settings.frozen else "training" if settings.trains else "unfrozen"
    return ["dovetail.bench.worker", case, rival, str(settings.threads), how, settings.clock]


def _environment(settings: BenchSettings, cache: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    env["OMP_NUM_THREADS"] = env["MKL_NUM_THREADS"] = str(settings.threads)
    env["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
    env["DOVETAIL_CACHE_DIR"] = f"{cache}/dovetail"
    env["TRITON_CACHE_DIR"] = f"{cache}/triton"
    return env | PROCESSORS.get(settings.processor, {})
