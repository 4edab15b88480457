"""Decompositions of operators: PyTorch's tables, and composite operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def core_aten_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own table from ATen to core ATen, for what is left once autograd was applied.

    That takes composite operators apart, unless they have kernels of their own. PyTorch's function
    of this name lists the others too, which takes it a tenth of a second; export alone needs them
    (``composite_operators``).
    """
    from torch._decomp import _core_aten_decompositions_post_autograd
    from torch._export.utils import _get_decomp_for_cia, _is_preservable_cia_op
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    table = dict(_core_aten_decompositions_post_autograd())
    for op in _composites_with_kernels():
        if op not in table and op not in PRESERVED_ATEN_CIA_OPS and _is_preservable_cia_op(op):
            table[op] = _get_decomp_for_cia(op)
    return table


def _composites_with_kernels() -> Iterator[Any]:
    """Composite operators, defined as such in C++ or in Python, that a device has a kernel for."""
    import torch
    from torch._decomp import decomposition_table

    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    composite = set(registered("CompositeImplicitAutograd"))
    for name in composite & {name for key in _DEVICE_KEYS for name in registered(key)}:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        yield getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    yield from (op for op in decomposition_table if key in op.py_kernels)


# Dispatch keys of devices whose dense tensors torch.compile may meet.
_DEVICE_KEYS = ("CPU", "CUDA", "XPU", "MPS", "HPU", "MTIA", "XLA", "PrivateUse1", "Meta")


def export_composites() -> dict[Any, Callable[..., Any]]:
    """What core ATen has for composite operators beyond ``core_aten_decompositions``."""
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    found = (op for op in composite_operators() if op not in PRESERVED_ATEN_CIA_OPS)
    return {op: composite_decomposition(op) for op in found}


def named_decompositions(names: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of ATen operators, by name; those it has none for are left out."""
    import torch
    from torch._decomp import decomposition_table

    found = {}
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            if op in decomposition_table:
                found[op] = decomposition_table[op]
    return found


def keep_composites(rules: Mapping[Any, Callable[..., Any]]) -> Any:
    """Within the context, each composite operator is decomposed by its rule.

    A rule that returns NotImplemented leaves the operator whole. Autograd does not see through
    an operator kept whole, so this is for inference graphs.
    """
    from torch.export.exported_program import _override_composite_implicit_decomp

    return _override_composite_implicit_decomp(dict(rules))


def composite_decomposition(op: Any) -> Callable[..., Any]:
    """The decomposition a composite operator has by default."""
    from torch._export.utils import _get_decomp_for_cia

    return _get_decomp_for_cia(op)  # type: ignore[no-any-return]


@functools.cache
def correct_lstm() -> None:
    """Give the final states of a decomposed LSTM eager's shape, for the rest of the process.

    PyTorch 2.11 takes the wrong one of two dimensions of one away, in one function for all that
    take an LSTM apart. Where the shape is right, the function that stands in for it adds nothing.
    """
    from torch._decomp import decompositions

    layer = decompositions.one_layer_lstm

    @functools.wraps(layer)
    def corrected(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out, final = layer(inp, hidden, *args, **kwargs)
        pairs = zip(final, hidden, strict=True)
        return out, tuple(f if f.dim() == h.dim() else f.view(h.shape) for f, h in pairs)

    decompositions.one_layer_lstm = corrected


def lstm_layer(x: Any, state: Any, weights: Any, biases: bool, reverse: bool) -> Any:
    """PyTorch's decomposition of a layer of an LSTM in one direction; ``correct_lstm`` first."""
    from torch._decomp import decompositions

    return decompositions.one_layer_lstm(x, state, weights, biases, reverse)


def composite_operators() -> list[Any]:
    """Every operator that PyTorch defines by others and can decompose safely."""
    from torch._export.utils import _collect_all_valid_cia_ops

    return sorted(_collect_all_valid_cia_ops(), key=str)
