"""The page's text: whole in itself, and nothing of a report becomes markup."""

import base64
import hashlib
import json
import math
import re
from pathlib import Path

import pytest
from tools.fetch_cytoscape import FOLDER, SHA256, digest

from dovetail.page.html import SCRIPTS, _static, embedded, page_data, page_html
from tests.page.reports import call, large, report
from tests.report.schema import problems

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>&\u2028\ud800\0'\""


def hostile_report():
    made = report([call(HOSTILE, ["x"], op=HOSTILE, module=HOSTILE)], outputs=[HOSTILE])
    made["compilations"][0]["notes"] = [HOSTILE]
    made["compilations"][0]["stages"][0]["after"] = HOSTILE
    made["graph_breaks"] = [{"reason": HOSTILE, "source": None}]
    return made


def data_in(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_reports_made_by_hand_are_reports():
    assert problems(large(5)) == []
    assert problems(hostile_report()) == []


@pytest.mark.parametrize("value", [HOSTILE, {HOSTILE: [HOSTILE]}, ["&lt;", "<", ">"]])
def test_embedded_json_has_no_markup_and_says_the_same(value):
    text = embedded(value)
    assert not re.search("[<>&]", text)
    assert text.isascii()
    assert json.loads(text) == value


def test_numbers_that_json_has_not_are_null():
    assert json.loads(embedded({"a": [math.inf, 1.0, math.nan]})) == {"a": [None, 1.0, None]}


def test_hostile_names_stay_data():
    page = page_html(hostile_report(), HOSTILE.replace("\ud800", ""))
    assert page.count("<script") == page_html(report([]), "fine").count("<script")
    assert "<img" not in page
    assert data_in(page)["report"]["compilations"][0]["notes"] == [HOSTILE]


def test_the_policy_names_what_is_there_and_nothing_else():
    page = page_html(report([]), "a page")
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    blocks = re.findall(r"<(?:script|style)(?: id=\"\w+\")?>(.*?)</(?:script|style)>", page, re.S)
    found = [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in blocks]
    assert re.findall(r"sha256-([^']+)", policy) == [*found[2:], *found[:2]]


def test_nothing_is_loaded_from_elsewhere():
    page = page_html(report([]), "a page").replace(_static("cytoscape.min.js"), "")
    assert not re.search(r"""(?:src|href|url\(|import)\s*[=(]?\s*["']?(?:https?:)?//""", page)
    assert " src=" not in page
    assert " href=" not in page


def test_scripts_make_no_markup_of_text():
    for name in SCRIPTS:
        text = _static(name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert "</script" not in text


def test_each_text_of_a_stage_is_kept_once():
    made = report([])
    stage = made["compilations"][0]["stages"][0]
    made["compilations"][0]["stages"] = [stage, {**stage, "before": stage["after"]}]
    data = page_data(made, "")
    assert data["texts"] == [stage["before"], stage["after"]]
    assert [s["before"] for s in data["report"]["compilations"][0]["stages"]] == [0, 1]


def test_the_library_is_the_version_it_is_said_to_be():
    assert digest(FOLDER / "cytoscape.min.js") == SHA256
    assert "Permission is hereby granted" in (FOLDER / "cytoscape.LICENSE.txt").read_text()


def test_what_the_page_is_made_of_is_installed():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"page/static/*"' in project
