"""A backend for Dynamo, by somebody who has never heard of dovetail."""


def compile_graph(gm, example_inputs):
    return gm.forward
