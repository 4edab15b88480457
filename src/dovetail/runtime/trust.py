"""Whose files are trusted: Ed25519 keys that this user trusts, by file or by argument.

One public key a line, 64 hex digits, ``#`` starts a comment, in the file ``trusted_keys`` of
dovetail's configuration directory (``DOVETAIL_CONFIG``, else ``dovetail`` in the user's
configuration directory): the lines that ``dovetail sign`` prints. Nobody but the user (and root)
may be able to write the file, its directory, or a directory above that could be put in its place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.errors import InvalidKey
from dovetail.variables import variable

FILE = "trusted_keys"
# What ``Artifact.signature()`` says, in words.
SIGNATURES = {
    1: "signed by a trusted key",
    0: "not signed",
    -1: "signed by a key that is not trusted here",
    -2: "signed by an older dovetail, which no longer counts: sign it again",
}
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Never through a link, which would lead to a directory nobody has looked at, nor into a pipe.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def trusted_keys() -> list[bytes]:
    """The public keys that this user trusts; none where there is no such file."""
    path = config_directory() / FILE
    text = _read_guarded(path)
    return [] if text is None else parse_keys(text, str(path))


def public_keys(given: Iterable[bytes | str]) -> list[bytes]:
    """Public keys as 32 bytes each, from bytes or from lines of a key file."""
    keys: list[bytes] = []
    for key in given:
        if isinstance(key, str):
            keys += parse_keys(key, "trusted_keys")
        elif len(key) == 32:
            keys.append(bytes(key))
        else:
            raise InvalidKey(f"a public key has 32 bytes, not {len(key)}")
    return keys


def parse_keys(text: str, where: str) -> list[bytes]:
    """Keys from the text of a key file."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.split("#", 1)[0].strip()
        if plain:
            keys.append(parse_key(plain, f"{where}, line {number}"))
    return keys


def parse_key(text: str, where: str) -> bytes:
    """One key, private or public, from its 64 hex digits."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidKey(f"{where}: a key is 64 hex digits")
    return key


def config_directory() -> Path:
    """Where dovetail looks for its configuration."""
    given = variable("DOVETAIL_CONFIG")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(home, "dovetail")


def _read_guarded(path: Path) -> str | None:
    """The text of a file that others cannot have written; None where there is none.

    Each directory is opened once and its permissions are those of what was opened, so that nothing
    can be exchanged between the look and the reading.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidKey(f"cannot read {path}: {error.strerror}") from None
    try:
        handle = os.open(path.name, _OPEN, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise InvalidKey(f"cannot read {path}: {why}") from None
    else:
        with os.fdopen(handle, "rb") as file:
            _check_folder(Path(os.path.realpath(path.parent)), os.fstat(folder))
            _check_file(path, os.fstat(file.fileno()))
            data = file.read()
    finally:
        os.close(folder)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidKey(f"{path} is not text: {error.reason}") from None


def _check_file(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise InvalidKey(f"{path} is not a regular file")
    if not _is_guarded(info):
        raise InvalidKey(f"{path} may be written by others than its owner: chmod 600 it")


def _check_folder(folder: Path, info: os.stat_result) -> None:
    """The folder of the keys, and those above it as far as the home directory."""
    if not _is_guarded(info):
        raise InvalidKey(
            f"{folder} may be written by others, who could replace {FILE} in it: chmod 700 it"
        )
    for above in _above(folder):
        info = above.stat()
        sticky = bool(info.st_mode & stat.S_ISVTX)  # as /tmp: others cannot rename what is there
        if not (_is_guarded(info) or (sticky and info.st_uid in (0, os.getuid()))):
            raise InvalidKey(
                f"{above} may be written by others, who could replace {folder}: chmod go-w it"
            )


def _above(folder: Path) -> Iterator[Path]:
    home = Path(os.path.realpath(Path.home()))
    for above in folder.parents:
        if folder.is_relative_to(home) and not above.is_relative_to(home):
            return
        yield above


def _is_guarded(info: os.stat_result) -> bool:
    """Whether only the user or root can write it."""
    return info.st_uid in (0, os.getuid()) and not info.st_mode & _WRITABLE_BY_OTHERS
