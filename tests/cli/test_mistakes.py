"""What a user can get wrong at the command line: one line that says what to do, exit status 2."""

import pytest

from dovetail.cli import main

MLP = "tests.artifact.factories:mlp"
OUT = ["-o", "x.dvt"]

MISTAKES = {
    "no command": ([], "Missing command"),
    "unknown command": (["backnds"], "did you mean 'backends'?"),
    "unknown option": (["backends", "--josn"], "--json"),
    "too many arguments": (["backends", "x"], "unexpected extra argument"),
    "unknown action": (["cache", "lst"], "did you mean 'ls'?"),
    "missing argument": (["inspect"], "Missing argument 'FILE'"),
    "missing option": (["compile", MLP], "Missing option '-o'"),
    "missing value": (["run", "m.dvt", "--repeat"], "'--repeat' requires an argument"),
    "negative count": (["run", "m.dvt", "--repeat", "-3"], "'-3' is not a whole number from 1 on"),
    "zero": (["run", "m.dvt", "--repeat", "0"], "'0' is not a whole number from 1 on"),
    "no number": (["run", "m.dvt", "--repeat", "x"], "'x' is not a whole number from 1 on"),
    "negative size": (["run", "m.dvt", "--size", "-1"], "'-1' is not a whole number from 0 on"),
    "no limit": (["run", "m.dvt", "--max-memory", "-5"], "is not a number of bytes above zero"),
    "no seconds": (["bench", "--seconds", "0"], "is not a number of seconds above zero"),
    "two sources": (["run", __file__, "--random", "--input", "x.npy"], "not both"),
    "options apart": (["explain", MLP, "--target", "x86-64-v3"], "--target goes with --stages"),
    "unknown choice": (["new", "my_accel", "--kind", "rust"], "is not one of 'c'"),
    "unknown shell": (["completion", "csh"], "is not one of 'bash'"),
    "no factory": (["compile", "nonsense", *OUT], "module:factory"),
    "no module": (["compile", "no.such.module:f", *OUT], "cannot import"),
    "no function": (["compile", "tests.artifact.factories:absent", *OUT], "no function 'absent'"),
    "no callable": (["compile", "tests.artifact.factories:NOT_CALLABLE", *OUT], "no function"),
    "needs arguments": (
        ["compile", "tests.artifact.factories:needs_width", *OUT],
        "needs width, but a factory",
    ),
    "makes no model": (["compile", "tests.artifact.factories:number", *OUT], "returned a int"),
    "graph break": (["compile", "tests.artifact.factories:breaks", *OUT], "as one graph"),
    "no source file": (["compile", "none.py:make", *OUT], "there is no file 'none.py'"),
    "no folder": (["compile", MLP, "-o", "no/such/folder/x.dvt"], "cannot write"),
    "no page": (["explain", MLP, "--html", "no/such/page.html"], "cannot write"),
    "no backend": (["compile", MLP, *OUT, "--backend", "nobody"], "no backend"),
    "no backends": (["explain", MLP, "--backends", ""], "names separated by commas"),
    "an empty backend": (["explain", MLP, "--backends", "cpu,,aten"], "names separated by commas"),
    "no key": (["compile", MLP, *OUT, "--key", "none"], "cannot read a key"),
    "nothing to sign with": (["sign", "--key", "my.key"], "cannot read a key"),
    "unknown target": (["compile", MLP, *OUT, "--target", "mips"], "the targets are"),
    "no name": (["new", "my accel"], "cannot name a package"),
    "no identifier": (["new", "3d"], "cannot name a package"),
    "taken name": (["new", "cpu"], "dovetail's own backends"),
    "no file": (["run", "none.dvt", "--random"], "no file"),
    "nothing to inspect": (["inspect", "none.dvt"], "no file"),
    "not a .dvt file": (["inspect", __file__], "no DVT signature"),
    "no such case": (["bench", "sofmax"], "softmax"),
    "no such entry": (["cache", "why", "zz"], "zz"),
    "model raises": (["explain", "tests.cli.factories:raises"], "RuntimeError: no such weather"),
    "wrong shape": (
        ["explain", "tests.cli.factories:wrong_shape"],
        "without dovetail, too: RuntimeError: mat1 and mat2 shapes",
    ),
    "wrong shape to export": (
        ["compile", "tests.cli.factories:wrong_shape", *OUT],
        "return self.linear(x)",
    ),
    "wrong shape to reproduce": (
        ["reproduce", "tests.cli.factories:wrong_shape"],
        "tests/cli/factories.py:23: return self.linear(x)",
    ),
    "needs PyTorch": (
        ["compile", "tests.cli.factories:needs_torch", *OUT, "--without-torch"],
        "tests/cli/factories.py:32): write these lines with other operators, or leave out",
    ),
    "factory exits": (["explain", "tests.cli.factories:exits"], "SystemExit: 3"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_and_status_2(name, tmp_path, monkeypatch, capsys):
    arguments, problem = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert problem in printed.err
    assert printed.err.startswith("dovetail")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


@pytest.mark.parametrize("arguments", [["inspect", "none.dvt"], ["run", "m.dvt", "--repeat", "x"]])
def test_debug_shows_the_traceback(arguments, capsys):
    assert main([*arguments, "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
