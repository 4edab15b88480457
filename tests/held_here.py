"""A backend whose code is an object of the process that made it."""

import torch

from dovetail.backend import Backend, Blob, Support

REASON = "the code of the backend 'held_here' is an object of this process"


class HeldHere(Backend):
    """Code that cannot be written to a file."""

    name = "held_here"

    def supports(self, call):
        return Support.yes() if call.op == "aten.sin.default" else Support.no("sin alone")

    def compile(self, segment):
        return Blob(live=segment)

    def load(self, blob):
        return lambda inputs: [torch.sin(inputs[0])]
