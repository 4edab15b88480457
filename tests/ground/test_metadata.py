"""Metadata that no build tool would write, and modules that do odd things on import."""

import sys
import textwrap

import pytest

from dovetail import errors
from tests.ground import samples
from tests.ground.samples import Accel, compile_graph


def write_metadata(folder, entry_points, name="handmade"):
    """What an installer leaves behind, in a folder that is put on sys.path."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dovetail.backends]\n" + entry_points)


def test_a_plugin_installed_since_the_last_look_is_found(tmp_path, monkeypatch, registry):
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(errors.UnknownBackend):
        registry.backend_info("late")
    write_metadata(tmp_path, f"late = {samples.__name__}:compile_graph [fast]\n")
    assert registry.backend_info("late").tags == ("fast",)
    assert registry.lookup_backend("late") is compile_graph


def test_a_plugin_waits_while_a_test_has_its_name(tmp_path, monkeypatch, registry):
    monkeypatch.syspath_prepend(str(tmp_path))
    with registry.registered_backend(Accel, name="borrowed"):
        write_metadata(tmp_path, f"borrowed = {samples.__name__}:compile_graph\n")
        with pytest.raises(
            errors.UnknownBackend, match=r"borrowed of handmade \(the name is taken"
        ):
            registry.lookup_backend("nobody")
        assert isinstance(registry.get_backend("borrowed"), Accel)
    assert registry.lookup_backend("borrowed") is compile_graph


def test_a_malformed_entry_point_harms_only_itself(tmp_path, monkeypatch, registry):
    lines = "malformed = what is this?\nhyphen = os:nothing [a-tag, b]\n"
    write_metadata(tmp_path, lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.backend_info("hyphen").tags == ("a-tag", "b")
    assert "aten" in registry.list_backends()
    with pytest.raises(errors.BrokenPlugin, match="'what is this\\?' is not module:attribute"):
        registry.lookup_backend("malformed")
    with pytest.raises(errors.BrokenPlugin, match="has no attribute 'nothing'"):
        registry.lookup_backend("hyphen")
    with pytest.raises(errors.UnknownBackend, match=r"malformed \(its entry point"):
        registry.backend_info("nobody")


@pytest.mark.parametrize("nonsense", [b"no equals sign", b"\xff\xfe = a:b"])
def test_unreadable_metadata_hides_nobody_else(tmp_path, monkeypatch, caplog, registry, nonsense):
    write_metadata(tmp_path, "")
    with (tmp_path / "handmade-1.0.dist-info" / "entry_points.txt").open("ab") as file:
        file.write(nonsense)
    other = tmp_path / "other"
    other.mkdir()
    write_metadata(other, "readable = os:getcwd [fast]\n", name="readable-dist")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(other))
    info = registry.backend_info("readable")
    assert (info.tags, info.distribution) == (("fast",), "readable-dist")
    assert "the entry points of handmade cannot be read" in caplog.text


@pytest.fixture
def plugin_module(tmp_path, monkeypatch):
    """Puts a module of the given source, and metadata that declares it, on sys.path."""

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        write_metadata(tmp_path, f"{name} = {name}:compile_graph\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        modules.append(name)

    modules = []
    yield write
    for name in modules:
        sys.modules.pop(name, None)


def test_a_module_may_use_the_registry_from_another_thread(plugin_module, registry, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "shared_registry", registry, raising=False)
    plugin_module(
        "plugin_with_a_thread",
        f"""
        import threading
        from {__name__} import shared_registry

        thread = threading.Thread(target=shared_registry.list_backends, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "the registry is locked while it imports"

        def compile_graph(gm, example_inputs):
            return gm.forward
        """,
    )
    assert registry.lookup_backend("plugin_with_a_thread").__name__ == "compile_graph"


def test_a_module_that_registers_and_then_raises_is_broken(plugin_module, registry, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "shared_registry", registry, raising=False)
    plugin_module(
        "plugin_half_way",
        f"""
        from {__name__} import shared_registry

        @shared_registry.register_backend(name="plugin_half_way")
        def compile_graph(gm, example_inputs):
            return gm.forward

        raise OSError("no driver")
        """,
    )
    for _ in range(2):
        with pytest.raises(errors.BrokenPlugin, match="OSError: no driver"):
            registry.lookup_backend("plugin_half_way")
    assert not registry.backend_info("plugin_half_way").loaded
