"""Every DOVETAIL_* variable that is no option of a compilation (those are in ``options.py``).

A process that only loads a file reads some of them: this imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dovetail.errors import UnknownOption

# The C runtime, where it is used without Python, reads the first two itself.
VARIABLES: Mapping[str, str] = {
    "DOVETAIL_NUM_THREADS": "how many threads kernels use; by default PyTorch's number of threads, "
    "or one a core in a process without PyTorch",
    "DOVETAIL_PROCESSOR": "code is made and loaded as on this smaller processor, such as "
    "x86-64-v3; by default as on this machine's",
    "DOVETAIL_CONFIG": "the folder of dovetail's configuration; by default ~/.config/dovetail",
}


def variable(name: str) -> str | None:
    """What the environment says for one of ``VARIABLES``; None where it is not set or empty."""
    if name not in VARIABLES:
        raise UnknownOption("variable", name, VARIABLES)
    return os.environ.get(name) or None
