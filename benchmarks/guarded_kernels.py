"""What it costs that nobody vouches for a file: its kernels interpreted, guarded, trusted.

Kernels of an unsigned file are compiled with checks of what the data decide: gathered and masked
places, divisors. Medians over interleaved rounds on one thread; times in microseconds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
F = torch.nn.functional


def cases() -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    """A function and its inputs, by what it is about."""
    x, ids = torch.randn(512, 512), torch.randint(0, 2000, (64, 32))
    columns = torch.randint(0, 512, (512, 512))
    numbers = torch.randint(1, 1000, (512, 512))
    return {
        "no check needed": (lambda x: torch.softmax(x, -1) * 2, (x,)),
        "embedding": (lambda i, w: F.embedding(i, w) * 2, (ids, torch.randn(2000, 256))),
        "gather": (lambda x, i: x.gather(1, i) + 1, (x, columns)),
        "index of rows": (lambda x, i: x[i] + 1, (x, torch.randint(0, 512, (512,)))),
        "padding": (lambda x: F.pad(x, (3, 5, 2, 2)) + 1, (x,)),
        "cat": (lambda x: torch.cat([x, x + 1], 1) * 2, (x,)),
        "shifted rows": (lambda x: torch.roll(x, 3, 1) + 1, (x,)),
        "integer division": (lambda n: n // (n % 7 + 1), (numbers,)),
    }


def variants(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """The file of a function, run three ways."""
    from tests.codegen.kernels import plan_of
    from tests.native.interpret import plan_file

    from dovetail.backends.cpu.regenerate import regenerate
    from dovetail.file import container
    from dovetail.runtime.loaded import open_native

    data = plan_file(plan_of(fn, *args))
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is interpreted
        for name in ("interpreted", "guarded", "trusted"):
            native = open_native(data)
            if name != "interpreted":
                code, _ = regenerate(native.section(container.KERNEL_IR), name == "trusted")
                native.use_code(code)
            found[name] = lambda native=native: native(*args)[0]
    return found


def main() -> None:
    from dovetail import _native
    from kernel_interpreter import median_times

    torch.set_num_threads(1)
    _native.set_threads(1)
    print(f"{'':18}{'interpreted':>13}{'guarded':>10}{'trusted':>10}{'guarded of trusted':>21}")
    for name, (fn, args) in cases().items():
        runs = variants(fn, args)
        expected = fn(*args)
        for run in runs.values():
            torch.testing.assert_close(torch.from_dlpack(run()), expected)
        found = median_times(runs)
        times = "".join(f"{found[n]:{w}.1f}" for n, w in zip(found, (13, 10, 10), strict=True))
        print(f"{name:18}{times}{found['guarded'] / found['trusted']:20.2f}x")


if __name__ == "__main__":
    main()
