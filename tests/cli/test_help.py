"""Help, version and completion, and what they cost."""

import itertools
import sys

import click
import pytest

from dovetail import __version__
from dovetail.cli import bench, main
from dovetail.cli.command import Command
from dovetail.cli.group import COMMANDS, group
from dovetail.cli.progress import Progress


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dovetail {__version__}\n"


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert name in printed
        assert summary.split()[0] in printed


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "cache"])
def test_help_has_examples_that_parse(name, capsys):
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Examples:" in printed
    command = group.get_command(click.Context(group), name)
    assert isinstance(command, Command)
    for example in command.examples:
        assert example in printed
        words = example.split()
        if words[:2] == ["dovetail", name] and not {"*.dvt", ">"} & set(words):
            command.make_context(name, words[2:])  # raises where an option is unknown


def test_cases_that_bench_names_in_its_help_exist():
    for example in bench.command.examples:
        words = example.split()[2:]
        given = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
        assert bench._chosen(given, "cuda" if "cuda" in words else "cpu")


def test_what_a_factory_is_stands_in_the_help(capsys):
    for name in ("compile", "explain"):
        main([name, "--help"])
        assert "takes no arguments and returns (model, args)" in " ".join(
            capsys.readouterr().out.split()
        )


@pytest.mark.e2e
def test_help_imports_no_torch_and_no_command(here):
    done = here.start(
        "-c",
        "import sys; from dovetail.cli import main; main(['--help']);"
        "held = {'torch', 'numpy', 'rich', 'llvmlite', 'dovetail.cli.run'} & {*sys.modules};"
        "sys.exit(f'imported {held}' if held else 0)",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_click_there_is_a_line_that_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "click", None)
    monkeypatch.delitem(sys.modules, "dovetail.cli.group")
    assert main(["--help"]) == 2
    assert capsys.readouterr().err == (
        "dovetail: the command needs click: pip install 'dovetail[cli]'\n"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "_DOVETAIL_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dovetail ex", {"explain"}),
        ("dovetail explain --trai", {"--train"}),
        ("dovetail compile x:y --backend por", {"portable"}),
        ("dovetail compile x:y --target x86", {"x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"}),
        ("dovetail cache st", {"stats"}),
        ("dovetail explain mod", {"model.py:", "models/"}),
    ],
)
def test_what_is_completed(words, expected, tmp_path, monkeypatch, capsys):
    (tmp_path / "model.py").write_text("")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_DOVETAIL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert main([]) == 0
    found = {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()}
    assert found == expected


def test_progress_is_shown_after_a_second_and_taken_away(monkeypatch, capsys):
    monkeypatch.setattr("dovetail.cli.progress._stage", lambda: ": lower, inference graph")
    shown = Progress("compiling model.py:make")
    shown.show(0.5)
    assert capsys.readouterr().err == ""
    shown.show(2.0)
    assert (
        capsys.readouterr().err.strip() == "compiling model.py:make: lower, inference graph … 2 s"
    )
    shown.clear()
    assert capsys.readouterr().err.strip() == ""
