"""Each private PyTorch interface we use, so that a move shows here, by name."""
