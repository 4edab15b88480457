"""How long a user waits for ``import dovetail`` and ``dovetail backends``, in new processes.

The interpreter's own start is measured beside them and shown, so that what is ours can be told
from what is not.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 15
# Bytecode is kept, as where dovetail is installed: else each process compiles our sources.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
COMMANDS = {
    "python, nothing imported": ["-c", "pass"],
    "import dovetail": ["-c", "import dovetail"],
    "dovetail.list_backends()": ["-c", "import dovetail; dovetail.list_backends()"],
    "dovetail backends": ["-m", "dovetail", "backends"],
}


def milliseconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for arguments in COMMANDS.values():  # writes bytecode
        milliseconds(arguments)
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(milliseconds(arguments))
    print(f"{'':<28}{'median ms':>10}{'least':>8}{'most':>8}")
    for name, taken in times.items():
        print(f"{name:<28}{statistics.median(taken):>10.0f}{min(taken):>8.0f}{max(taken):>8.0f}")


if __name__ == "__main__":
    main()
