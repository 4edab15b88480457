"""From ``dovetail new`` to an edited kernel in torch.compile, step by step as docs/plugins.md says.

Prints seconds by the clock and of processor time since the start, in an environment of its own. The
target is a minute. The kernel is the one of the documentation; its edit is done by this program.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the environments of the tests

from tests.ground.environments import TemporaryEnvironment
from tests.plugin.test_new import add_the_kernel_of_the_docs

PIP = ("install", "--no-index", "--no-deps", "--no-build-isolation", "-e")
MODEL = """
    import torch, dovetail
    model, x = lambda x: -torch.relu(x), torch.randn(3, 4)
    assert torch.equal(torch.compile(model, backend="my_accel")(x), model(x))
    assert dovetail.explain(model, x, backend="my_accel").placements() == {"my_accel": 2}
"""


def seconds() -> tuple[float, float]:
    """By the clock, and of processor time of all processes that ended."""
    spent = os.times()
    return time.perf_counter(), spent.children_user + spent.children_system


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    environment = TemporaryEnvironment(folder)  # not counted: the user has one
    package, start = folder / "my_accel", seconds()

    def done(step: str) -> None:
        clock, processor = (now - then for now, then in zip(seconds(), start, strict=True))
        print(f"{step:40} {clock:5.1f} s {processor:5.1f} s of processor time")

    environment.run("-m", "dovetail", "new", "my_accel", "--output", str(package))
    done("dovetail new my_accel")
    environment.pip(*PIP, str(package))
    done("pip install -e")
    environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(package))
    done("pytest my_accel")
    add_the_kernel_of_the_docs(package / "csrc" / "kernels.c")
    environment.pip(*PIP, str(package))
    done("a kernel more, pip install -e")
    environment.run("-c", textwrap.dedent(MODEL))
    done("both kernels run in torch.compile")


if __name__ == "__main__":
    main()
