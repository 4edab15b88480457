"""The examples of the README run as they stand."""

import re

import pytest

from tests.ground.environments import PLUGINS, ROOT

README = (ROOT / "README.md").read_text()
TEXTS = [README]  # those of the docs: tests/docs
EXAMPLES = [e for text in TEXTS for e in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.e2e
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(here, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one writes a file
    printed = here.script(EXAMPLES[number], DOVETAIL_DEBUG="0")
    if "explain" in EXAMPLES[number]:
        assert "2 on my_kernels, 1 on aten" in printed
        assert "aten.mul.Tensor (1x) refused by my_kernels: no kernel" in printed


def test_the_commands_come_first():
    first = README.split("```")[1]
    assert first.index("make demo") < first.index("make test")


def test_the_named_example_package_declares_both_entry_points():
    text = (PLUGINS / "twinkle" / "pyproject.toml").read_text()
    for group in re.findall(r"\[project\.entry-points\.[^]]+\]", README):
        assert group in text
