"""The targets that code can be made for on a machine like this one."""

from dovetail.codegen.llvm.target import NAMED
from dovetail.file.processors import family, target_here
from dovetail.schedule.cpu.register_tiles import least_target


def family_targets():
    return [name for name in NAMED if (name == "armv8-a") == (family() == "aarch64")]


def plain_target():
    """What code here is made for that has no product in half precision."""
    return least_target([], target_here()).name
