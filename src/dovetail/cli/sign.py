"""``dovetail sign model.dvt --key my.key``: sign a file, or make a key with --new-key.

What it prints can be added to the file of trusted keys as it is: a line of the public key, and
comments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from dovetail.artifact.sign import new_key, read_private_key, sign_file
from dovetail.cli.command import Command
from dovetail.cli.keyfile import write_key
from dovetail.errors import ArtifactNotFound
from dovetail.runtime.trust import FILE, config_directory


@click.command(
    cls=Command,
    examples={
        "dovetail sign --key my.key --new-key": "Make a key and print its public half.",
        "dovetail sign model.dvt --key my.key": "Sign a file with it.",
        "dovetail sign --key my.key": "Print the public half once more.",
    },
)
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--key", required=True, metavar="FILE", help="File with the private key.")
@click.option("--new-key", "make_key", is_flag=True, help="Make that key first.")
def command(files: Sequence[str], key: str, make_key: bool) -> int:
    """Sign .dvt FILES, or make a key, and print the public key."""
    from dovetail import _native

    if make_key:
        write_key(key, new_key())
    private = read_private_key(key)
    for path in files:
        if not Path(path).is_file():
            raise ArtifactNotFound(f"there is no file {path!r}")
        sign_file(path, private)
        print(f"# {path}: signed")
    print(f"# to trust its key, add this line to {config_directory() / FILE}")
    print(f"{_native.public_key(private).hex()}  # {Path(key).name}")
    return 0
