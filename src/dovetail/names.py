"""The type of a backend name: built-in ones complete in an editor, any other string is fine."""

from typing import Literal

BuiltinBackend = Literal["dovetail", "aten", "eager", "reference"]
BackendName = BuiltinBackend | str
