"""``dovetail sign model.dvt --key my.key``: sign a file, or make a key with --new-key.

What it prints can be added to the file of trusted keys as it is: a line of the public key, and
comments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.artifact.sign import new_key, read_private_key, sign_file
from dovetail.cli.keyfile import write_key
from dovetail.errors import ArtifactNotFound
from dovetail.runtime.trust import FILE, config_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("files", nargs="*", metavar="file", help="a .dvt file")
    parser.add_argument("--key", required=True, help="file with the private key")
    parser.add_argument("--new-key", action="store_true", help="make that key first")


def run(arguments: argparse.Namespace) -> int:
    """Sign each file and print the public key; exit status 0."""
    from dovetail import _native

    if arguments.new_key:
        write_key(arguments.key, new_key())
    key = read_private_key(arguments.key)
    for path in arguments.files:
        if not Path(path).is_file():
            raise ArtifactNotFound(f"there is no file {path!r}")
        sign_file(path, key)
        print(f"# {path}: signed")
    print(f"# to trust its key, add this line to {config_directory() / FILE}")
    print(f"{_native.public_key(key).hex()}  # {Path(arguments.key).name}")
    return 0
