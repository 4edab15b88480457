"""What a library computes on a GPU."""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.target import Target
from dovetail.lower.calls import Lowered
from dovetail.lower.contraction import Contraction
from dovetail.lower.values import Scanned

# Multiplications of a product that costs more to ask a library for than to do: calling cuBLAS takes
# the host five times as long as a launch, and a kernel of ours does this many in its latency.
SMALL_PRODUCT = 1 << 20
LONGEST_SUM = 1 << 10  # of such a product, which one row of threads adds up
LONG_SCAN = 1 << 16  # elements of a scan that PyTorch shares among blocks, and our kernels do not


def library_reason(found: Lowered, target: Target) -> str:
    """Why a library had better compute what a call became; empty where kernels had."""
    if found.contractions and not all(map(_is_small, found.contractions)):
        return "a product, which a library has matrix instructions for"
    if len(found.contractions) > 1:
        return "several products, which a library fuses"
    for value in found.made:
        if isinstance(value, Scanned):
            size, total = value.shape[value.dim], product(value.shape)
            if not isinstance(size, int) or not isinstance(total, int):
                continue
            if size >= LONG_SCAN and total // size < target.cores:
                return "a long scan, which a library shares among blocks"
    return ""


def _is_small(value: Contraction) -> bool:
    """Whether a matrix product is done before a library is called."""
    work, length = product(value.source_shape), product(value.source_shape[d] for d in value.dims)
    if not isinstance(work, int) or not isinstance(length, int):
        return False
    plain = all(factor.is_plain for factor in value.factors)
    return plain and 0 < work <= SMALL_PRODUCT and length <= LONGEST_SUM
