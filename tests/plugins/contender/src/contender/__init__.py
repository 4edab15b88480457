"""Wants names that others want too."""


def compile_graph(gm, example_inputs):
    return gm.forward
