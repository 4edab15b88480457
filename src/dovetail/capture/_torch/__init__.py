"""Every private PyTorch interface that dovetail touches, one function each, a module a subject.

PyTorch's compiler internals move between releases. They are reached from here alone, imported
inside the function that needs them, and ``tests/capture/torch_interfaces`` exercises each so that a
move shows as one clear failure. Importing these modules imports nothing of torch; callers import
the one they need.
"""
