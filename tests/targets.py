"""The targets that code can be made for on a machine like this one."""

from dovetail.codegen.llvm.target import NAMED
from dovetail.file.processors import family


def family_targets():
    return [name for name in NAMED if (name == "armv8-a") == (family() == "aarch64")]
