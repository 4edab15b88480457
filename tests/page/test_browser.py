"""The page in a real browser: what is there, what a click shows, what it asks for (nothing)."""

import json
import socket

import pytest
import torch
from torch import nn

import dovetail
from dovetail.page.html import graph_layout, page_html
from tests.page.reports import call, large, report
from tests.page.test_html import HOSTILE, hostile_report

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("browser")]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        y = self.linear(x).relu() * 2
        values, _ = y.topk(3)
        return y.softmax(-1), values


@pytest.fixture(scope="module")
def data():
    torch.compiler.reset()
    with torch.no_grad():
        model, options = Model().eval(), {"profile": True}
        return dovetail.explain(model, torch.randn(8, 16), backend="cpu", options=options).to_dict()


@pytest.fixture(scope="module")
def path(data, tmp_path_factory):
    made = tmp_path_factory.mktemp("page") / "page.html"
    made.write_text(page_html(data, "a model"))
    return made


@pytest.fixture
def page(browser, path):
    browser.open(path)
    yield browser
    assert browser.errors() == []
    assert browser.requests() == [f"file://{path}"]


def graph_of(data):
    return data["compilations"][0]["graphs"][0]


def test_every_node_and_edge_is_there(page, data):
    graph = graph_of(data)
    nodes, edges = page.run(
        "const cy = dovetail.view.cy; return [cy.nodes().length, cy.edges().length]"
    )
    assert nodes == len(graph["inputs"]) + len(graph["calls"]) + 1
    reads = [set(c["reads"]) for c in graph["calls"]] + [set(graph["outputs"])]
    assert edges == sum(map(len, reads))
    drawn = page.run("return dovetail.view.cy.nodes().map(n => [n.position('x'), n.position('y')])")
    assert drawn == [list(place) for place in graph_layout(graph)]


def test_the_numbers_are_those_of_the_data(page, data):
    graph = graph_of(data)
    facts = page.text("#facts")
    assert f"{len(graph['calls'])} calls" in facts
    for kind, noun in (
        ("kernel", "generated kernel"),
        ("library", "library call"),
        ("host", "host call"),
    ):
        assert f"{graph['counts'][kind]} {noun}" in facts
    page.find("#tab-memory").click()
    shown = page.text("#memory")
    for segment in graph["segments"]:
        memory = segment["program"]["memory"]
        assert f"{memory['peak']:,}" in shown
        assert f"{memory['sum']:,}" in shown
        buffers = page.run("return document.querySelectorAll('#memory rect.buffer').length")
    assert buffers == sum(len(s["program"]["memory"]["buffers"]) for s in graph["segments"])
    page.find("#tab-stages").click()
    shown = page.text("#stages")
    for stage in data["compilations"][0]["stages"]:
        assert f"{stage['milliseconds']:.2f}" in shown
    page.find("#tab-kernels").click()
    shown = page.text("#kernels")
    assert f"{len(data['compilations'][0]['kernels'])} generated kernel" in shown
    for row in graph["segments"][0]["program"]["instructions"]:
        share = row["roofline"]["share"]
        near = {
            f"{n} % {row['roofline']['bound']}" for n in (int(100 * share), int(100 * share) + 1)
        }
        assert any(text in shown for text in near), row  # rounded as JavaScript does
    assert "GB/s copied" in shown
    page.find("#tab-overview").click()
    assert "aten.topk.default" in page.text("#overview") or graph["segments"][0]["ops"]


def test_a_click_shows_line_kernel_and_code(page, data):
    softmax = next(c for c in graph_of(data)["calls"] if c["op"] == "aten._softmax.default")
    page.click_node(softmax["name"])
    shown = page.text("#details")
    assert "aten._softmax.default" in shown
    assert "return y.softmax(-1), values" in shown
    assert f"{__file__}:{softmax['source']['line']}" in shown
    kernels = {k["name"]: k for k in data["compilations"][0]["kernels"]}
    (segment,) = (s for s in graph_of(data)["segments"] if s["name"] == softmax["segment"])
    steps = [segment["program"]["instructions"][n] for n in softmax["instructions"]]
    names = [step["name"] for step in steps if step["kind"] == "kernel"]
    assert names
    for name in names:
        assert name in shown
    texts = page.run(
        "return [...document.querySelectorAll('#details summary')].map(s => s.click())"
    )
    assert texts
    code = page.run("return [...document.querySelectorAll('#details pre')].map(p => p.textContent)")
    for text in ("schedule", "llvm", "assembly"):
        assert any(kernels[names[0]][text] == shown for shown in code), text


def test_search_finds_and_goes_there(page):
    box = page.find("#search")
    box.send_keys("TOPK")
    assert page.text("#found") == "1 found"
    box.send_keys("\ue007")  # enter
    assert page.text("#found") == "1 of 1"
    assert "aten.topk.default" in page.text("#details")
    box.clear()
    box.send_keys("values, _ = y")  # by a line of the model
    assert page.text("#found") == "1 found"
    box.clear()
    box.send_keys("nothing like it")
    assert page.text("#found") == "0 found"


def test_colours(page, data):
    colours = "return dovetail.view.cy.nodes().map(n => n.data('colour'))"
    by_kind = page.run(colours)
    assert {"generated kernel", "host call"} <= {*page.text("#legend").splitlines()}
    page.find("#colour option[value=backend]").click()
    assert "cpu" in page.text("#legend")
    page.find("#colour option[value=time]").click()
    by_time = page.run(colours)
    assert by_kind != by_time
    assert "µs" in page.text("#legend")


def test_the_keyboard_does(page):
    page.find("body").send_keys("/")
    assert page.run("return document.activeElement.id") == "search"
    page.find("#search").send_keys("\ue00c")  # escape
    assert page.run("return document.activeElement.id") == "canvas"
    canvas = page.find("#canvas")
    canvas.send_keys("\ue015")  # down
    first = page.text("#details h2")
    canvas.send_keys("\ue015")
    assert page.text("#details h2") != first
    before = page.run("return dovetail.view.cy.zoom()")
    canvas.send_keys("+")
    assert page.run("return dovetail.view.cy.zoom()") > before
    page.find("#tab-graph").send_keys("\ue014")  # right
    assert page.run("return document.querySelector('[aria-selected=true]').id") == "tab-overview"


def test_a_pass_is_shown_before_and_after(page, data):
    stages = data["compilations"][0]["stages"]
    changed = [n for n, s in enumerate(stages) if s["changed"] and s["after"]]
    page.find("#tab-stages").click()
    shown = page.run(
        "return [...document.querySelectorAll('[data-stage]')].map(b => +b.dataset.stage)"
    )
    assert shown == changed


def test_lines_that_a_pass_removed(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_html(report([call("b", ["x"])]), "a page"))
    browser.open(path)
    browser.find("#tab-stages").click()
    left, right = browser.driver.find_elements("css selector", "#stages .diff pre")
    assert [s.text for s in left.find_elements("css selector", ".removed")] == ["  %a = sin(%x)"]
    assert right.find_elements("css selector", ".added") == []


def test_hostile_names_are_shown_as_they_are(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_html(hostile_report(), HOSTILE.replace("\ud800", "").replace("\0", "")))
    browser.open(path)
    browser.run("dovetail.select(dovetail.graphs[0].nodes[1], true)")
    for tab in ("overview", "stages", "memory", "kernels", "graph"):
        browser.find(f"#tab-{tab}").click()
    title = "return document.querySelector('#details h2').textContent.slice(0, 34)"
    assert browser.run(title) == HOSTILE[:34]
    assert browser.run("return document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.run("return document.scripts.length") == 3
    assert browser.errors() == []
    assert browser.requests() == [f"file://{path}"]


def test_the_policy_is_in_force(browser, path):
    browser.open(path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        browser.run(
            "const s = document.createElement('script'); s.textContent = 'window.harm = 1';"
            "document.body.append(s); new Image().src = arguments[0];"
            "fetch(arguments[0]).catch(() => 0)",
            f"http://127.0.0.1:{server.getsockname()[1]}/",
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert browser.run("return window.harm") is None
    assert any("Content Security Policy" in each for each in browser.errors())
    browser.requests()


def test_five_thousand_nodes(browser, tmp_path, record_property):
    path = tmp_path / "page.html"
    path.write_text(page_html(large(5000), "large"))
    browser.open(path)
    ready = browser.run("return dovetail.readyAt")
    record_property("ready_ms", ready)
    print(f"5,000 nodes can be used after {ready:.0f} ms")
    assert browser.run("return dovetail.view.cy.nodes().length") == 5002
    browser.find("#search").send_keys("c4321")
    assert browser.text("#found") == "1 found"
    browser.click_node("c4321")
    assert "c4321" in browser.text("#details")
    assert browser.errors() == []


def test_light_and_dark(browser, path):
    ink = "return getComputedStyle(document.body).color"
    browser.open(path)
    light = browser.run(ink)
    browser.open(path, dark=True)
    assert browser.run(ink) != light
    assert browser.errors() == []


def test_nothing_compiled(browser, tmp_path):
    path = tmp_path / "page.html"
    dovetail.explain(lambda: None).to_html(path)
    browser.open(path)
    assert "Nothing was compiled" in browser.text("#details")
    assert browser.errors() == []


def test_the_data_in_the_page_is_the_report(page, data):
    held = page.run("return JSON.stringify(dovetail.report.compilations[0].graphs)")
    assert json.loads(held) == json.loads(json.dumps(data["compilations"][0]["graphs"]))
