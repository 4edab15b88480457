"""``cuda``: fused kernels as Triton's code, PyTorch's own for products and the rest."""
