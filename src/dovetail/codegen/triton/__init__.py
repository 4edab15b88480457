"""Kernel IR and its schedule as Triton's text, then a GPU's code; the only user of Triton."""
