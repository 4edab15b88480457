"""Dead code: what nothing uses and nothing notices.

A random operator stays even when its result is unused: dropping it would change the numbers that
later ones draw.
"""

from __future__ import annotations

from torch import fx

from dovetail.passes.graphs import is_pure


def eliminate_dead_code(gm: fx.GraphModule) -> fx.GraphModule:
    """Drop unused pure calls and constants."""
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and (is_pure(node) or node.op == "get_attr"):
            gm.graph.erase_node(node)
    return gm
