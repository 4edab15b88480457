"""Backend names and tags: their type, and what makes one valid."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from dovetail.errors import InvalidBackendName, InvalidTags

# Built-in names complete in an editor; any other string is fine.
BuiltinBackend = Literal[
    "dovetail", "aten", "cpu", "cuda", "eager", "onnxruntime", "opencl", "portable", "reference"
]
BackendName = BuiltinBackend | str

_USABLE = re.compile(r"[\w.-]+")


def check_name(name: object) -> str:
    """``name``, when it can name a backend in code and in a package's metadata."""
    if not isinstance(name, str) or not _USABLE.fullmatch(name):
        raise InvalidBackendName(name)
    return name


def check_tags(tags: Iterable[str]) -> frozenset[str]:
    """``tags`` as a set; a bare string would be taken for its letters, so it is refused."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidTags(tags)
    tags = tuple(tags)
    if not all(isinstance(tag, str) and tag for tag in tags):
        raise InvalidTags(tags)
    return frozenset(tags)
