"""The bytes of a file of a program, without torch."""

from dovetail.file import container
from dovetail.file.encode import encode_program


def program_bytes(program, sections=(), generated=None, contents=None):
    """An artifact of a program whose inputs and outputs are plain tensors."""
    leaves = [
        [{"tensor": i} for i in range(n)] for n in (len(program.inputs), len(program.outputs))
    ]
    trees = {
        "inputs": {"tuple": [{"tuple": leaves[0]}, {"dict": []}]},
        "outputs": {"tuple": leaves[1]},
    }
    made, features = encode_program(
        program, contents or {}, trees, generated=generated, debug=False
    )
    return b"".join(container.chunks(*container.lay_out([*made, *sections], features)))
