"""Fetch the library that draws the explain page, from npm, and put it into the package.

python tools/fetch_cytoscape.py            write src/dovetail/page/static/cytoscape.*
python tools/fetch_cytoscape.py --check    exit 1 unless what lies there is this version

For a new version, change ``VERSION`` and ``SHA256``, and look at the page.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.34.4"
SHA256 = "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8"  # of cytoscape.min.js
FOLDER = Path(__file__).resolve().parent.parent / "src" / "dovetail" / "page" / "static"
FILES = {
    "package/dist/cytoscape.min.js": "cytoscape.min.js",
    "package/LICENSE": "cytoscape.LICENSE.txt",
}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch() -> None:
    """Have npm load the package, and take the minified script and the licence out of it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"cytoscape@{VERSION}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as held:
            for member, name in FILES.items():
                file = held.extractfile(member)
                assert file is not None
                (FOLDER / name).write_bytes(file.read())


def main() -> int:
    """Fetch, then check; or check alone."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fetch nothing")
    if not parser.parse_args().check:
        fetch()
    found = digest(FOLDER / "cytoscape.min.js")
    if found != SHA256:
        print(f"cytoscape.min.js is not that of {VERSION}: its SHA-256 is {found}")
        return 1
    print(f"cytoscape.min.js is that of {VERSION}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
