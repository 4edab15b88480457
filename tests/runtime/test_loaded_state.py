"""A loaded model's state: read, written, reset, copied, pickled; other interpreters."""

import copy
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.errors import ArtifactChanged, RunFailed, UnknownState, UnsupportedArtifact
from dovetail.runtime.loaded import Loaded, open_native
from tests.artifact.files import file_bytes, floats
from tests.ground.environments import ROOT, Environment

COUNT = """\
program @count
input %x: float32[2, 2]
state %total: float32[2, 2] strides [1, 2]
temporary %t: float32[2, 2]
output %y: float32[2, 2]
kernel %t = add@1(%total, %x)
copy %total = %t
kernel %y = copy@1(%t)
return %y
"""
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "count.dvt"
    path.write_bytes(file_bytes(COUNT, {"total": floats(10, 20, 30, 40)}))
    return path


@pytest.fixture
def run(path):
    return dovetail.load(path)


START = np.array([[10.0, 30.0], [20.0, 40.0]], np.float32)  # transposed in the file


def test_state_is_read_by_name_in_any_layout(run):
    assert list(run.state) == ["total"]
    np.testing.assert_array_equal(run.state["total"], START)
    np.testing.assert_array_equal(run(X), START + X)
    np.testing.assert_array_equal(run.state["total"], START + X)


def test_what_was_read_is_a_copy(run):
    before = run.state["total"]
    run(X)
    np.testing.assert_array_equal(before, START)


def test_state_is_written_and_reset(run):
    run.state["total"] = np.asfortranarray(X)
    np.testing.assert_array_equal(run(X), 2 * X)
    run.state.update({"total": X * 0})
    np.testing.assert_array_equal(run(X), X)
    run.state.reset()
    np.testing.assert_array_equal(run.state["total"], START)


def test_mistakes_are_named(run):
    with pytest.raises(UnknownState, match="keeps no 'sum' from call to call; it keeps: total"):
        run.state["sum"]
    with pytest.raises(UnknownState):
        run.state.update({"total": X, "sum": X})
    np.testing.assert_array_equal(run.state["total"], START)
    with pytest.raises(RunFailed, match="another shape, dtype or device"):
        run.state["total"] = X.astype(np.float64)
    with pytest.raises(RunFailed, match="3 bytes for a buffer of 16"):
        run.native.write_state(0, b"abc")
    with pytest.raises(RunFailed):
        run.native.read_state(1)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_a_copy_goes_its_own_way(run, how):
    run(X)
    other = how(run)
    np.testing.assert_array_equal(other(X), START + 2 * X)
    np.testing.assert_array_equal(run(10 * X), START + 11 * X)
    third = how(other)
    other.state.reset()
    np.testing.assert_array_equal(third(X), START + 3 * X)
    np.testing.assert_array_equal(other(X), START + X)


def test_copies_outlive_what_was_loaded(run):
    copies = [copy.copy(run) for _ in range(3)]
    del run
    for each in copies:
        np.testing.assert_array_equal(each(X), START + X)


def test_a_model_without_state_is_copied_and_has_none():
    text = "program @p\ninput %x: float32[2]\noutput %y: float32[2]\n"
    run = Loaded(open_native(file_bytes(text + "kernel %y = neg@1(%x)\nreturn %y\n")))
    assert dict(run.state) == {}
    run.state.reset()
    np.testing.assert_array_equal(copy.copy(run)(X[0]), -X[0])


def test_sequences_run_at_one_time(run):
    sequences = [copy.copy(run) for _ in range(4)]
    problems = []

    def work(sequence, scale):
        wanted = [START + X * scale * step for step in range(1, 50)]
        if not all(np.array_equal(sequence(X * scale), each) for each in wanted):
            problems.append(scale)

    threads = [threading.Thread(target=work, args=(s, i + 1)) for i, s in enumerate(sequences)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    np.testing.assert_array_equal(run.state["total"], START)


def test_a_pickle_names_the_file_and_holds_the_state(run, path):
    run(X)
    data = pickle.dumps(run)
    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data)(X), START + 2 * X)
    other = file_bytes(COUNT, {"total": floats(0, 0, 0, 0)})
    path.write_bytes(other)
    with pytest.raises(ArtifactChanged, match="is not the file that it was"):
        pickle.loads(data)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


def test_bytes_in_memory_are_not_pickled():
    loaded = Loaded(open_native(file_bytes()))
    with pytest.raises(UnsupportedArtifact, match="read from a file"):
        pickle.dumps(loaded)


def test_dynamic_sizes_are_described():
    text = "program @p\nsymbol n = %x[0] in 2..8\ninput %x: float32[n]\noutput %y: float32[n]\n"
    native = open_native(file_bytes(text + "kernel %y = neg@1(%x)\nreturn %y\n"))
    assert native.symbols() == [("n", 0, 0, 2, 8)]


@pytest.mark.e2e
def test_a_subinterpreter_is_told_to_use_the_main_one():
    said = Environment(Path(sys.executable)).script("""
        import dovetail._native  # the main interpreter goes on
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        made = interpreters.create()
        code = '''
        try:
            import dovetail._native
        except ImportError as error:
            print(error)
        '''
        import textwrap
        interpreters.run_string(made, textwrap.dedent(code))
        interpreters.destroy(made)
        print(dovetail._native.Artifact.__name__)
    """)
    assert "subinterpreters" in said
    assert said.splitlines()[-1] == "Artifact"


@pytest.mark.e2e
def test_free_threaded_python_is_refused_with_a_reason(tmp_path):
    """Such an interpreter cannot be had everywhere; the condition that it is known by can."""
    here, model = Environment(Path(sys.executable)), tmp_path / "model.dvt"
    model.write_bytes(b"read by nobody")
    pretending = """
        import runpy, sys, sysconfig
        real = sysconfig.get_config_var
        sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else real(name)
    """
    built = here.script(f"""{pretending}
        try:
            runpy.run_path({str(ROOT / "setup.py")!r})
        except SystemExit as exit:
            print(exit)
    """)
    opened = here.script(f"""{pretending}
        sys.modules["dovetail._native"] = None  # as where the extension does not load
        import dovetail
        try:
            dovetail.load({str(model)!r})
        except dovetail.errors.UnsupportedArtifact as error:
            print(error)
    """)
    for said in (built, opened):
        assert "does not support free-threaded Python" in said
        assert "Use the ordinary build".lower() in said.lower()
