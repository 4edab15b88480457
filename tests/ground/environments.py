"""New processes and new environments: what these tests look at cannot be seen from inside one."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

PLUGINS = Path(__file__).parents[1] / "plugins"
ROOT = Path(__file__).parents[2]


class Environment:
    """A Python interpreter to start, with what is installed for it."""

    def __init__(self, python: Path) -> None:
        self.python = python

    def run(self, *arguments: str, status: int = 0, **variables: str) -> str:
        """Standard output of ``python ARGUMENTS``; its exit status must be ``status``."""
        done = self.start(*arguments, **variables)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **variables},
            cwd=self.python.parent,  # not the repository, which would be on sys.path
        )

    def script(self, code: str, **variables: str) -> str:
        return self.run("-c", textwrap.dedent(code), **variables)

    def answer(self, code: str, **variables: str):
        """What a script prints on its last line, read as JSON."""
        return json.loads(self.script(code, **variables).splitlines()[-1])


class TemporaryEnvironment(Environment):
    """A virtual environment that sees the running one's packages and gets some of its own."""

    def __init__(self, folder: Path, *, shares_packages: bool = True) -> None:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "env")
        super().__init__(folder / "env" / "bin" / "python")
        self.sources = folder / "sources"
        if shares_packages:
            own = Path(
                self.script("import sysconfig; print(sysconfig.get_path('purelib'))").strip()
            )
            shared = sysconfig.get_path("purelib")
            (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")

    def pip(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "-q", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def install_plugins(self, *names: str) -> None:
        for name in names:
            shutil.copytree(PLUGINS / name, self.sources / name)
        packages = [str(self.sources / name) for name in names]
        self.pip("install", "--no-index", "--no-deps", "--no-build-isolation", *packages)
