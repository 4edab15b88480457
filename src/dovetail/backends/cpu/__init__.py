"""``cpu``: fused kernels as native code, and PyTorch's operators between them."""
