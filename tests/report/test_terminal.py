"""The report in a terminal: 80 columns and no colours in a pipe, colours in a terminal."""

import pytest
import torch

import dovetail

terminal = pytest.importorskip("dovetail.cli.terminal", reason="rich is not installed")


@pytest.fixture(scope="module")
def data():
    torch.compiler.reset()
    with torch.no_grad():
        found = dovetail.explain(lambda x: x.relu().sort(-1), torch.randn(4, 4), backend="aten")
    return found.to_dict()


def test_a_pipe_has_80_columns_and_no_colours(data, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    data = {**data, "graph_breaks": [{"reason": "[red]why[/red] " * 20, "source": None}]}
    terminal.show_report(data)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "backends aten" in out
    assert "[red]why[/red]" in out  # no markup of rich's
    assert "0 generated kernels, 0 library calls, 2 host calls" in out
    for stage in data["compilations"][0]["stages"]:
        assert f"{stage['milliseconds']:.2f}" in out


def test_a_terminal_has_colours(data, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.show_report(data)
    assert "\x1b[" in capsys.readouterr().out


def test_nothing_was_compiled(capsys):
    terminal.show_report(dovetail.explain(lambda: None).to_dict())
    assert capsys.readouterr().out == "nothing was compiled\n"
