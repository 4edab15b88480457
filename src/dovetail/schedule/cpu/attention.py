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
# PyTorch's; of a head a quarter with vectors of 32 bytes, unless half of it is left out.
MOST_OF_HEAD, MOST = 1 << 20, 16 << 20
WIDE = 64  # bytes of a vector
FEW = 4  # keys for each query from which on vectors of 32 bytes gain nothing: nothing is used again


def attention_reason(scores: Contraction, mixed: Contraction, target: Target) -> str:
    """Why a library had better compute attention, by the number of its scores."""
    size, narrow = item_bytes(scores.dtype), target.vector_bytes < WIDE
    *_, queries, keys = scores.shape
    every = product(scores.shape)
    if not isinstance(queries, int) or not isinstance(keys, int) or not isinstance(every, int):
        return "attention whose sizes are not known"
    most = MOST_OF_HEAD // 4 if narrow and not mixed.leaves_out else MOST_OF_HEAD
    if queries * keys * size > most or every * size > MOST:
        return "attention with more scores than caches hold"
    if narrow and FEW * queries < keys:
        return "attention of few queries, which a library is better at"
    return ""
