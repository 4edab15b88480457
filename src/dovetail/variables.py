"""Every DOVETAIL_* variable that is no option of a compilation (those are in ``options.py``).

A process that only loads a file reads some of them: this imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dovetail.errors import InvalidOption, UnknownOption

# The C runtime, where it is used without Python, reads the first four itself.
VARIABLES: Mapping[str, str] = {
    "DOVETAIL_NUM_THREADS": "how many threads kernels use; by default PyTorch's number of threads, "
    "or one a core in a process without PyTorch",
    "DOVETAIL_PROCESSOR": "code is made and loaded as on this smaller processor, such as "
    "x86-64-v3; by default as on this machine's",
    "DOVETAIL_DEVICE_TIMEOUT": "for how many seconds a plug-in's device is waited for before it "
    "counts as lost, where the plug-in lets itself be asked; 0: for ever; by default 300",
    "DOVETAIL_DEVICE_GRAPHS": "0: work is given to a plug-in's device piece by piece at each call, "
    "not recorded once and replayed",
    "DOVETAIL_CONFIG": "the folder of dovetail's configuration; by default ~/.config/dovetail",
    "DOVETAIL_CACHE": "0: compiled graphs are neither read from the cache nor kept in it",
    "DOVETAIL_CACHE_DIR": "the cache's folder; by default ~/.cache/dovetail",
    "DOVETAIL_CACHE_SIZE": "how many bytes the folder may hold, such as 500M; by default 4G",
    "DOVETAIL_CACHE_WAIT": "for how many seconds a process waits for another that compiles the "
    "same graph, before it compiles it too; by default 120",
    "DOVETAIL_CACHE_REMOTE": "a cache that machines share: redis://host:port/0, or any URL that "
    "fsspec knows, such as s3://bucket/folder; by default none",
    "DOVETAIL_CACHE_KEY": "a file of 64 hex digits that authenticate what the remote cache holds",
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def variable(name: str) -> str | None:
    """What the environment says for one of ``VARIABLES``; None where it is not set or empty."""
    if name not in VARIABLES:
        raise UnknownOption("variable", name, VARIABLES)
    return os.environ.get(name) or None


def parse_flag(variable: str, text: str) -> bool:
    """What the text of a variable that is on or off means."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise InvalidOption(variable, text, "1 or 0")
