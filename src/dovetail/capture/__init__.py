"""From a PyTorch program to a functional ATen graph, and from there to segments."""
