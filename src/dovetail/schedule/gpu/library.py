"""What a library computes on a GPU."""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.target import Target
from dovetail.lower.calls import Lowered
from dovetail.lower.values import Scanned

LONG_SCAN = 1 << 16  # elements of a scan that PyTorch shares among blocks, and our kernels do not


def library_reason(found: Lowered, target: Target) -> str:
    """Why a library had better compute what a call became; empty where kernels had."""
    if found.contractions:
        return "a product, which a library has matrix instructions for"
    for value in found.made:
        if isinstance(value, Scanned):
            size, total = value.shape[value.dim], product(value.shape)
            if not isinstance(size, int) or not isinstance(total, int):
                continue
            if size >= LONG_SCAN and total // size < target.cores:
                return "a long scan, which a library shares among blocks"
    return ""
