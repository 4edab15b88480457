"""torch.export as PyTorch has it: what its own steps warn of is not the user's doing."""

from __future__ import annotations

import warnings


def ignore_copied_leaves() -> None:
    """Hide the warning that ``ExportedProgram.run_decompositions`` causes by copying a tree.

    The text blames a use of LeafSpec; the place, ``copyreg``, shows that it is a copy of one.
    """
    warnings.filterwarnings(
        "ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning, module="copyreg"
    )
