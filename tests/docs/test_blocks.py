"""Every block of Python in the docs runs, every command in them parses, every option is there."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import click
import pytest
import torch
from torch import nn

import dovetail
from dovetail import registry
from dovetail.cli.group import group
from dovetail.constraints import Constraints
from dovetail.options import Options
from dovetail.variables import VARIABLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "decisions" not in p.parts)
# A block that a comment says is not run must say why.
BLOCK = re.compile(r"(<!-- not run: [^>]{8,} -->\n)?```python\n(.*?)```", re.DOTALL)
# A model and its input, for blocks that show a line of what one does with them.
GIVEN = {"torch": torch, "nn": nn, "dovetail": dovetail}


def blocks(page):
    return [code for not_run, code in BLOCK.findall(page.read_text()) if not not_run]


def test_what_kernels_may_declare_and_are_asked_about_is_listed():
    text = (DOCS / "plugins.md").read_text()
    asked = text.split("## Which operators are asked about")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)=", asked, re.M)) == Constraints.names()
    (listed,) = re.findall(r"```text\n(.*?)```", asked, re.S)
    core = {
        name
        for name in listed.split()
        for op in [getattr(torch.ops.aten, name)]
        if any(torch.Tag.core in getattr(op, overload).tags for overload in op.overloads())
    }
    assert core == set(listed.split())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda p: p.relative_to(DOCS).as_posix()
)
def test_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    torch.compiler.reset()
    torch.manual_seed(0)
    before = set(registry.list_backends(exclude_tags=()))
    space = {"__name__": "a_page_of_the_docs", **GIVEN}
    try:
        for number, code in enumerate(blocks(page)):
            exec(compile(code, f"{page.name}, block {number}", "exec"), space)
    finally:
        made = registry._REGISTRY  # blocks register for good, as programs do
        for entry in [e for e in made._all() if e.name not in before]:
            made._remove(entry, {})


def commands():
    for page in PAGES:
        for text in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for line in re.findall(r"^\$ dovetail (.*)$", text, re.MULTILINE):
                yield pytest.param(line, id=f"{page.stem}: {line}")


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line):
    words = [word for word in shlex.split(line, comments=True) if not word.endswith("…")]
    words = words[: words.index(">")] if ">" in words else words
    with group.make_context("dovetail", words) as context:
        name, command, rest = group.resolve_command(context, words)
        while isinstance(command, click.Group):
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, rest)


def test_every_option_and_variable_is_documented():
    text = (DOCS / "options.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|(.*)$", text, re.MULTILINE)
    listed = {name: rest for name, rest in rows if not name.startswith("DOVETAIL_")}
    known = {option.name: option for option in fields(Options)}
    artifacts = {"post_grad_graphs", "fusion", "schedule", "output_code", "kernel_code"}
    assert listed.keys() - artifacts == known.keys()
    for name, option in known.items():
        variable = option.metadata["env"]
        assert variable is None or f"`{variable}`" in listed[name], name
        if isinstance(option.default, bool):
            assert listed[name].strip().startswith(f"`{option.default}`"), name
    assert {name for name, _ in rows if name.startswith("DOVETAIL_")} == VARIABLES.keys()


def test_variables_that_the_sources_read_are_declared():
    known = VARIABLES.keys() | {option.metadata["env"] for option in fields(Options)}
    read = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "native" / "src").glob("*.c")]:
        read |= set(re.findall(r"\bDOVETAIL_[A-Z_]+[A-Z]\b", path.read_text()))
    others = {"DOVETAIL_PLUGIN_H", "DOVETAIL_COMPLETE", "DOVETAIL_H"}
    assert {name for name in read if not name.startswith("DOVETAIL_PLUGIN")} - others <= known


def test_the_glossary_is_short():
    terms = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)[1:]
    terms = [term for term in terms if set(term) != {"-"}]
    assert len(terms) == len(set(terms)) <= 40
    assert terms == sorted(terms, key=str.lower)


@pytest.mark.e2e
def test_the_site_builds_without_a_warning(here, tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    done = here.start(
        "-m", "mkdocs", "build", "-q", "--strict", "-f", str(ROOT / "mkdocs.yml"),
        "-d", str(tmp_path / "site"), NO_MKDOCS_2_WARNING="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dovetail_plugin_query" in (tmp_path / "site/abi.html").read_text()
    assert "dvt_open_options" in (tmp_path / "site/c_api.html").read_text()
    kernel_ir = (tmp_path / "site/kernel_ir.html").read_text()
    assert "TABLE OF" not in kernel_ir
    assert "check_divisor" in kernel_ir
    assert "format 1" in (tmp_path / "site/format.html").read_text()
    api = (tmp_path / "site/api.html").read_text()
    for name in ("explain", "Backend", "KernelBackend", "load", "UnknownOption"):
        assert name in api
    pages = list((tmp_path / "site").rglob("*.html"))
    outside = [
        p for p in pages if re.search(r'<(script|link)[^>]+(src|href)="https?:', p.read_text())
    ]
    assert outside == []  # nothing is fetched from elsewhere
