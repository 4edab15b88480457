"""Attention on a processor: which of it kernels compute.

A kernel has the products of queries and keys with the mask, one the softmax of each row, one the
products with the values and the division. Between them all scores lie in memory. PyTorch's kernel
has a block of them at a time, and is left what does not stay in the caches.
"""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.target import Target
from dovetail.lower.contraction import Contraction

# Bytes of scores, of one head and in all, up to which kernels were measured to take no longer than
# PyTorch's; of a head with vectors of 32 bytes, and where half of it is left out.
MOST_OF_HEAD, MOST = 4 << 20, 16 << 20
NARROW, NARROW_CAUSAL = 1 << 18, 1 << 20
WIDE = 64  # bytes of a vector
# Keys for each query from which on vectors of 32 bytes gain nothing, since nothing is used again;
# but for so few queries what a call of PyTorch's takes beside is more (1 to 8 by 300 to 500: 0.57
# to 0.94 of its time, 16 by 500: 1.07).
FEW, FEW_QUERIES = 4, 8


def attention_reason(scores: Contraction, mixed: Contraction, target: Target) -> str:
    """Why a library had better compute attention, by the number of its scores."""
    size, narrow = item_bytes(scores.dtype), target.vector_bytes < WIDE
    *_, queries, keys = scores.shape
    every = product(scores.shape)
    if not isinstance(queries, int) or not isinstance(keys, int) or not isinstance(every, int):
        return "attention whose sizes are not known"
    causal = NARROW_CAUSAL if mixed.leaves_out else NARROW
    most = causal if narrow else MOST_OF_HEAD
    if queries * keys * size > most or every * size > MOST:
        return "attention with more scores than caches hold"
    if narrow and queries > FEW_QUERIES and FEW * queries < keys:
        return "attention of few queries, which a library is better at"
    return ""
