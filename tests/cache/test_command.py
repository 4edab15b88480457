"""``dovetail cache``, as a user calls it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dovetail import cache
from dovetail.cli import main
from tests.cache.samples import KEY, PARTS, key, path_of


@pytest.fixture
def say(capsys):
    """Run the command; its output, or with ``status`` its one line of complaint."""

    def run(*words, status=0):
        assert main(["cache", *words]) == status
        printed = capsys.readouterr()
        if status:
            assert printed.out == ""
            assert printed.err.count("\n") == 1
        return printed.err if status else printed.out

    return run


def test_stats(say, local, monkeypatch):
    cache.store(KEY, bytes(2000), seconds=1.5)
    cache.store(key(graph="other"), bytes(3000), seconds=2)
    printed = say("stats")
    assert f"folder     {local.path}\n" in printed
    assert "entries    2, 5." in printed
    assert " KB of 4 GB\n" in printed
    assert "compiling  3.5 s for all of them\n" in printed
    assert "remote     none" in printed
    monkeypatch.setenv("DOVETAIL_CACHE_REMOTE", "redis://me:password@host:1/0")
    facts = json.loads(say("stats", "--json"))
    assert (facts["entries"], facts["limit"], facts["remote"]) == (2, 4 << 30, "redis://host:1")
    assert "not used: DOVETAIL_CACHE_KEY names no key" in say("stats")


def test_stats_of_no_cache_at_all(say, monkeypatch):
    assert "entries    0, 0 bytes of 4 GB" in say("stats")
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
    assert "(off: DOVETAIL_CACHE=0)" in say("stats")
    assert say("ls") == ""
    assert say("clear") == "removed 0 entries\n"


def test_ls_lists_what_was_used_last_first(say, local):
    for age, name in enumerate(["new", "middle", "old"]):
        stored = key(graph=name)
        cache.store(stored, b"x", seconds=0.25, label=name)
        when = time.time() - 7200 * age
        os.utime(path_of(local, stored.digest), (when, when))
    lines = [line.split() for line in say("ls").splitlines()]
    assert lines[0] == ["key", "size", "used", "compiling", "label"]
    assert [line[-1] for line in lines[1:]] == ["new", "middle", "old"]
    assert lines[3][0] == key(graph="old").digest[:12]
    assert lines[3][3:8] == ["4", "h", "ago", "0.25", "s"]
    rows = json.loads(say("ls", "--json"))
    assert rows[0]["parts"]["graph"]["text"] == "new"


def test_ls_shows_a_damaged_entry(say, local):
    cache.store(KEY, b"x")
    path_of(local).write_bytes(b"no entry")
    assert say("ls").splitlines()[1].endswith("damaged")


@pytest.mark.parametrize("name", ["last_miss", "recent", "size", "an entry"])
def test_damage_anywhere_in_the_folder_stops_no_command(say, local, name):
    cache.store(KEY, b"payload", label="tagger")
    cache.lookup(key(options="other"))
    path = path_of(local) if name == "an entry" else Path(local.path, name)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :])
        say("ls")
        say("why")
        cache.lookup(key(graph="third"))
        path.write_bytes(whole[:at])
        say("why")
    cache.store(KEY, b"payload")
    assert cache.lookup(KEY) == cache.Hit(b"payload", "local")


def test_clear(say, local):
    cache.store(KEY, b"x")
    assert say("clear") == "removed 1 entry\n"
    assert not local.entries()


def test_why_names_the_part_in_which_the_last_miss_differs(say):
    cache.store(key(), b"x", label="tagger")
    missed = key(options="freeze=True")
    cache.lookup(missed)
    cache.store(missed, b"y")  # compiled meanwhile: neither this nor later ones are the nearest
    cache.store(cache.Key.of({**PARTS, "options": "freeze=True", "more": "z"}), b"z")
    intro, *differing = say("why").splitlines()
    nearest = f"the nearest entry is {key().digest[:12]} (tagger)"
    assert intro == f"{missed.digest[:12]}: {nearest}; 1 of 3 parts differ:"
    assert differing == ["  options  freeze=False  ->  freeze=True"]


def test_why_of_an_entry(say):
    cache.store(key(), b"x")
    later = key(graph="mul(a, b)")
    cache.store(later, b"y")
    assert "graph  add(a, b)  ->  mul(a, b)" in say("why", later.digest[:8])
    assert "no other entry to compare with" in say("why", KEY.digest)


def test_why_without_a_miss(say, local):
    assert say("why") == f"{local.path} remembers no miss\n"


def test_why_of_something_unknown(say):
    cache.store(KEY, b"x")
    cache.store(key(graph="other"), b"x")
    assert "no entry begins with 'zz'" in say("why", "zz", status=2)
    assert "2 entries begin with ''" in say("why", "", status=2)


def test_export_and_import(say, local, tmp_path, secret):
    cache.store(KEY, b"x")
    cache.store(key(graph="other"), b"y")
    file = str(tmp_path / "entries.bundle")
    assert say("export", file) == f"wrote 2 entries to {file}, sealed with your key\n"
    assert say("export", file, KEY.digest[:10]).startswith("wrote 1 entry to ")
    cache.clear()
    assert say("import", file) == f"took 1 entry from {file}\n"
    assert cache.lookup(KEY) == cache.Hit(b"x", "local")


def test_an_import_without_a_key_needs_a_word(say, local, tmp_path):
    cache.store(KEY, b"x")
    file = str(tmp_path / "entries.bundle")
    assert "without a seal" in say("export", file)
    cache.clear()
    assert "--trust" in say("import", file, status=2)
    assert say("import", file, "--trust") == f"took 1 entry from {file}\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["import", "/nowhere/bundle"], "cannot read /nowhere/bundle: No such file"),
        (["import", "/etc/passwd"], "no bundle of cache entries"),
        (["export", "/nowhere/bundle"], "cannot write /nowhere/bundle: No such file"),
        (["new-key", "/nowhere/key"], "cannot create '/nowhere/key': No such file"),
    ],
)
def test_a_mistake_gets_one_line(say, words, complaint):
    assert complaint in say(*words, status=2)


def test_a_folder_that_cannot_be_used_gets_one_line(say, local):
    Path(local.path).mkdir(0o700)
    Path(local.path).chmod(0o777)
    for words in (["stats"], ["ls"], ["clear"], ["why"]):
        assert "may be written by others: chmod 700 it" in say(*words, status=2)


def test_a_new_key_works_and_is_its_users_alone(say, tmp_path, monkeypatch):
    path = tmp_path / "new.key"
    assert f"DOVETAIL_CACHE_KEY={path}" in say("new-key", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert "File exists" in say("new-key", str(path), status=2)
    monkeypatch.setenv("DOVETAIL_CACHE_KEY", str(path))
    cache.store(KEY, b"x")
    assert "sealed with your key" in say("export", str(tmp_path / "b"))


def test_no_action_is_a_mistake(capsys):
    assert main(["cache"]) == 2
    assert "Missing command" in capsys.readouterr().err
