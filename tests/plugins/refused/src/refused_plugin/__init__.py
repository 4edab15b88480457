"""What no registry should take."""

import dovetail

NOTHING = {"not": "a backend"}


def compile_graph(gm, example_inputs):
    raise AssertionError("this function has no name of its own, so nobody can call it")


class Unfinished(dovetail.Backend):
    name = "unfinished"


class Moody(dovetail.Backend):
    name = "moody"

    def available(self):
        raise OSError("the driver does not answer")

    def supports(self, call):
        return dovetail.Support.no("moody")

    def compile(self, segment):
        raise NotImplementedError

    def load(self, blob):
        raise NotImplementedError

    @classmethod
    def reserved_names(cls):
        raise OSError("the driver does not answer")


class Mistagged(Moody):
    name = "mistagged"
    tags = "debug"
