"""The ``dovetail`` command, in this process where nothing has to be seen from outside."""

import json

import pytest

from dovetail import registry
from dovetail.cli import main


def test_backends_prints_a_table_without_debug_backends(capsys):
    assert main(["backends"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "tags", "device", "distribution", "available", "reason"]
    assert [line.split()[0] for line in lines[1:5]] == ["aten", "cpu", "cuda", "dovetail"]
    assert any(line.endswith("more with --all (debug and experimental)") for line in lines)


def test_all_adds_what_was_hidden_and_json_has_every_field(capsys):
    assert main(["backends", "--all", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"aten", "dovetail", "eager", "reference"} <= rows.keys()
    assert rows["reference"] == {
        "name": "reference",
        "tags": ["debug"],
        "experimental": False,
        "distribution": "dovetail",
        "loaded": True,
        "available": True,
        "reason": "",
        "device": "cpu",
    }


def test_a_registered_backend_shows_up(capsys):
    with registry.registered_backend(lambda gm, inputs: gm.forward, name="cli_test"):
        main(["backends"])
    assert "cli_test" in capsys.readouterr().out


@pytest.mark.e2e
def test_a_reader_that_leaves_early_is_no_error(here):
    done = here.start(
        "-c",
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
        "from dovetail.cli import main; sys.exit(main(['backends']))",
    )
    assert (done.returncode, done.stderr) == (0, "")
