"""Options and modes: accepted, checked, named when wrong."""

import pytest
import torch

from dovetail import errors
from dovetail.options import Options
from dovetail.variables import variable


def run(**compile_arguments):
    fn = torch.compile(lambda x: x + 1, backend="dovetail", **compile_arguments)
    return fn(torch.ones(2))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_modes_are_accepted(mode):
    torch.testing.assert_close(run(mode=mode), torch.full((2,), 2.0))


def test_an_unknown_mode_is_named():
    with pytest.raises(
        errors.UnknownOption, match=r"unknown mode 'reduce-over'.*did you mean 'reduce-overhead'"
    ):
        run(mode="reduce-over")


def test_an_unknown_option_is_named_with_the_nearest():
    with pytest.raises(
        errors.UnknownOption, match=r"unknown option 'freez'.*did you mean 'freeze'"
    ):
        run(options={"freez": True})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strict": "yes"}, "'strict' must be True or False, not 'yes'"),
        ({"freeze": 1}, "'freeze' must be True or False, not 1"),
        ({"passes": []}, "'passes' must be a dovetail.passes.PassManager"),
        ({"backend_options": 3}, "'backend_options' must be a dict"),
        ({"compile": "remote"}, "'compile' must be one of in-process, serialize, subprocess, not"),
        ({"compile_timeout": 0}, "'compile_timeout' must be a number of seconds above 0, not 0"),
        ({"compile_memory": 1.5}, "'compile_memory' must be a whole number above 0, or None"),
        ({"compile_workers": True}, "'compile_workers' must be a whole number above 0, or None"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(options, message):
    with pytest.raises(errors.InvalidOption, match=message):
        run(options=options)


def test_an_option_the_backend_does_not_have():
    with pytest.raises(errors.UnknownOption, match=r"option of backend '(aten|cpu)'"):
        run(options={"backend_options": {"speed": 11}})


def test_variables_set_defaults(monkeypatch):
    monkeypatch.setenv("DOVETAIL_STRICT", "0")
    monkeypatch.setenv("DOVETAIL_FREEZE", "true")
    options = Options.resolve({"strict": True})
    assert options.strict
    assert options.freeze
    monkeypatch.setenv("DOVETAIL_FREEZE", "perhaps")
    with pytest.raises(
        errors.InvalidOption, match="'DOVETAIL_FREEZE' must be 1 or 0, not 'perhaps'"
    ):
        Options.resolve()


def test_variables_say_how_to_compile(monkeypatch):
    monkeypatch.setenv("DOVETAIL_COMPILE", "subprocess")
    monkeypatch.setenv("DOVETAIL_COMPILE_TIMEOUT", "2.5")
    monkeypatch.setenv("DOVETAIL_COMPILE_MEMORY", "1000000")
    options = Options.resolve({"compile_workers": 3})
    assert (options.compile, options.compile_timeout) == ("subprocess", 2.5)
    assert (options.compile_memory, options.compile_workers) == (1000000, 3)
    monkeypatch.setenv("DOVETAIL_COMPILE_MEMORY", "lots")
    with pytest.raises(errors.InvalidOption, match="'DOVETAIL_COMPILE_MEMORY' must be a whole"):
        Options.resolve()


def test_the_errors_are_ours_and_python_s():
    with pytest.raises(TypeError):
        run(options={"freez": True})
    with pytest.raises(errors.DovetailError):
        run(options={"freez": True})


def test_per_device_default():
    import dovetail
    from dovetail import history

    dovetail.set_default_backend("reference", device="cpu")
    run()
    assert history.recent()[-1].backend == "reference"


def test_variables_have_one_home(monkeypatch):
    monkeypatch.setenv("DOVETAIL_NUM_THREADS", "3")
    monkeypatch.setenv("DOVETAIL_CONFIG", "")
    assert variable("DOVETAIL_NUM_THREADS") == "3"
    assert variable("DOVETAIL_CONFIG") is None
    with pytest.raises(errors.UnknownOption, match="DOVETAIL_CONFIG"):
        variable("DOVETAIL_CONFG")


def test_each_mode_means_something_or_is_refused():
    assert Options.resolve(None, "default") == Options.resolve()
    assert Options.resolve(None, "reduce-overhead").freeze
    assert not Options.resolve({"freeze": False}, "reduce-overhead").freeze
    both = Options.resolve(None, "max-autotune")
    assert (both.autotune, both.freeze, both.cuda_graphs) == (True, True, True)
    assert not Options.resolve(None, "max-autotune-no-cudagraphs").cuda_graphs
    with pytest.raises(errors.InvalidOption, match="'max-autotune-no-cudagraphs': nothing is"):
        Options.resolve(None, "lite")
    with pytest.raises(errors.UnknownOption):
        Options.resolve(None, "fast")
