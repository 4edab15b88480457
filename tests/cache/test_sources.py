"""Identities of passes and of dovetail itself, by their sources."""

import enum

from dovetail import passes, sources


def test_a_pass_of_another_package_follows_its_package(tmp_path, monkeypatch):
    import importlib
    import sys

    def identity(name, **changed):
        package = tmp_path / name / "helpful"
        files = {"__init__": "", "used": "import helpful.deep", "unused": "x = 1"}
        files |= {"deep": "y = 1", "main": "def run(gm):\n    from . import used\n    return gm\n"}
        package.mkdir(parents=True)
        for file, text in (files | changed).items():
            (package / f"{file}.py").write_text(text)
        monkeypatch.syspath_prepend(str(package.parent))
        try:
            main = importlib.import_module("helpful.main")
            sources._module_digest.cache_clear()
            return passes.as_pass(main.run).identity
        finally:
            for loaded in [m for m in sys.modules if m.partition(".")[0] == "helpful"]:
                del sys.modules[loaded]

    first = identity("a")
    assert identity("b") == first
    assert identity("c", unused="x = 2") == first
    assert identity("d", deep="y = 2") != first
    assert identity("e", used="import helpful.deep\nz = 1") != first
    assert identity("f", __init__="z = 1") != first


def test_the_digest_of_our_own_sources_covers_what_compiles(tmp_path):
    from pathlib import Path

    root = tmp_path / "pkg"
    for file in ("a.py", "deep/b.py", "ext.so", "cli/c.py", "deep/cli/d.py", "notes.md"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("1")
    found = {name for name, _ in sources.package_files(root)}
    assert found == {"a.py", "deep/b.py", "ext.so", "deep/cli/d.py"}
    before = sources.digest_files(sources.package_files(root))
    (root / "deep/b.py").write_text("2")
    assert sources.digest_files(sources.package_files(root)) != before
    ours = {name for name, _ in sources.package_files(Path(sources.__file__).parent)}
    assert {"pipeline.py", "lower/pointwise.py", "cache/graph_key.py"} <= ours
    assert any(name.startswith("_native") for name in ours)


def test_the_digest_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    import os
    import time

    from dovetail.cache import own_sources

    file, counted = tmp_path / "a.py", []

    def digest_files(files):
        counted.append(1)
        return sources.digest_files(files)

    def written(text):
        file.write_text(text)
        return own_digest()

    def own_digest():
        own_sources.own_digest.cache_clear()
        return own_sources.own_digest()

    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(own_sources, "package_files", lambda: [("a.py", file)])
    monkeypatch.setattr(own_sources, "digest_files", digest_files)
    first = written("x = 1")
    assert own_digest() == first
    assert len(counted) == 2  # too fresh to tell a second change by its time
    monkeypatch.setattr(own_sources, "_SETTLED", -1.0)
    assert own_digest() == first
    assert len(counted) == 3
    assert own_digest() == first
    assert len(counted) == 3
    later = time.time_ns() + 10**9
    file.write_text("x = 2")
    os.utime(file, ns=(later, later))
    assert own_digest() != first
    (kept,) = (tmp_path / "cache").glob("sources-*")
    kept.write_bytes(b"\xff garbage")
    assert own_digest() == sources.digest_files([("a.py", file)])
    monkeypatch.undo()
    own_sources.own_digest.cache_clear()


def test_an_enumeration_by_its_value():
    one, other = (enum.Enum("Kind", {"USED": value}) for value in (1, 2))
    assert sources.identity(one.USED) == sources.identity(enum.Enum("Kind", {"USED": 1}).USED)
    assert sources.identity(one.USED) != sources.identity(other.USED)
