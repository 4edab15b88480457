"""Tables, ratios and plots from figures that are given."""

import xml.etree.ElementTree as ElementTree

import pytest

from dovetail.bench import results
from dovetail.bench.plot import plot

FIGURES = {"best": 2e-6, "median": 3e-6, "first": 1.0, "peak_mb": 100.0, "error": 1e-7}
RESULTS = {
    "a": {"eager": FIGURES, "mine": {**FIGURES, "best": 1e-6, "warm": 0.5}},
    "b": {"eager": FIGURES, "mine": {**FIGURES, "best": 4e-6, "warm": 0.25}},
    "c": {"eager": FIGURES},
}


def test_the_least_of_every_round_is_kept():
    row = {}
    results.keep_best(row, "x", {"best": 2.0, "first": 1.0})
    results.keep_best(row, "x", {"best": 1.0, "first": 3.0})
    assert row == {"x": {"best": 1.0, "first": 1.0}}


def test_ratios_cover_the_cases_that_both_have():
    found = results.ratios_of(RESULTS, ["a", "b", "c"], "mine", "eager", "best")
    assert found == pytest.approx({"a": 0.5, "b": 2.0})


def test_summary_names_mean_and_worst_case():
    lines = results.summary(RESULTS, ["eager", "mine"], {"kernels": ["a", "b", "c"]})
    assert lines == ["kernels, steady state, mine over eager: geometric mean 1.00, worst 2.00 (b)"]


def test_the_best_of_the_others_is_found_case_by_case():
    rows = {
        "a": {"x": {"best": 1.0}, "y": {"best": 2.0}, "mine": {"best": 0.5}},
        "b": {"y": {"best": 1.0}, "mine": {"best": 2.0}},
        "c": {"mine": {"best": 2.0}},
    }
    lines = results.summary(rows, ["x", "y", "mine"], {"models": ["a", "b", "c"]})
    assert lines[-1] == (
        "models, steady state, mine over the best of the others: "
        "geometric mean 1.00, worst 2.00 (b)"
    )


def test_a_rival_that_failed_has_dashes():
    line = results.row_text("c", RESULTS["c"], ["eager", "mine"])
    assert line.rstrip().endswith("-")
    assert len(line) == len(results.header(["eager", "mine"])[1])


def test_the_plot_is_an_svg_with_a_bar_for_every_figure():
    root = ElementTree.fromstring(plot(RESULTS, ["eager", "mine"]))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    bars = [r for r in root.iter(f"{space}rect") if r.get("height") == "10" and r.get("y") != "12"]
    assert len(bars) == 5
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[1] < widths[0] < widths[3]
