"""What was measured, as a table, as ratios and as a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence

Figures = dict[str, float]
Results = dict[str, dict[str, Figures]]  # case → rival → figures

BEST = "the best of the others"
RATIOS = (("best", "steady state"), ("first", "cold first call"), ("warm", "warm first call"))


def keep_best(row: dict[str, Figures], rival: str, found: Figures) -> None:
    """Merge one more round: the least of each figure, for noise only ever adds."""
    before = row.get(rival, found)
    row[rival] = {key: min(before.get(key, found[key]), found[key]) for key in found}


def header(rivals: Sequence[str]) -> list[str]:
    """Two lines above the table: rivals, and what their columns hold."""
    columns = f"{'steady us':>11}{'cold s':>8}{'warm s':>8}{'MB':>6}{'error':>8}"
    best = ("", "") if len(rivals) < 3 else (f"| {rivals[-1]}", "| over best")
    return [
        f"{'':<30}" + "".join(f"| {rival:<41}" for rival in rivals) + best[0],
        f"{'case':<30}" + "".join(f"| {columns}" for _ in rivals) + best[1],
    ]


def row_text(case: str, row: dict[str, Figures], rivals: Sequence[str]) -> str:
    """One line of the table; a rival that could not be measured has a dash."""
    line = f"{case:<30}" + "".join(f"| {_cells(row.get(rival))}" for rival in rivals)
    if len(rivals) < 3:
        return line
    with_best = add_best({case: row}, rivals)
    ratio = ratios_of(with_best, [case], rivals[-1], BEST, "best").get(case)
    return line + (f"|{'-':>10}" if ratio is None else f"|{ratio:10.2f}")


def add_best(results: Results, rivals: Sequence[str]) -> Results:
    """With one more rival: in each case, the fastest of all but the last."""
    found: Results = {}
    for case, row in results.items():
        times = [row[rival]["best"] for rival in rivals[:-1] if "best" in row.get(rival, {})]
        found[case] = row | ({BEST: {"best": min(times)}} if times else {})
    return found


def _cells(found: Figures | None) -> str:
    if found is None:
        return f"{'-':>11}{'-':>8}{'-':>8}{'-':>6}{'-':>8}"
    warm = f"{found['warm']:8.2f}" if "warm" in found else f"{'-':>8}"
    return (
        f"{found['best'] * 1e6:11.1f}{found['first']:8.2f}{warm}"
        f"{found['peak_mb']:6.0f}{found['error']:8.0e}"
    )


def summary(results: Results, rivals: Sequence[str], groups: dict[str, list[str]]) -> list[str]:
    """Geometric mean and worst case of the last rival's time over every other's, per group."""
    last, lines = rivals[-1], []
    if len(rivals) > 2:
        results = add_best(results, rivals)
    for other in (*rivals[:-1], BEST):
        for group, cases in groups.items():
            for key, what in RATIOS:
                if key != "best" and other == "eager":
                    continue
                ratios = ratios_of(results, cases, last, other, key)
                if ratios:
                    lines.append(_line(group, what, last, other, ratios))
    return lines


def ratios_of(
    results: Results, cases: Sequence[str], last: str, other: str, key: str
) -> dict[str, float]:
    """Case → ratio, for the cases where both have the figure."""
    found = {}
    for case in cases:
        mine, theirs = results.get(case, {}).get(last, {}), results.get(case, {}).get(other, {})
        if key in mine and theirs.get(key):
            found[case] = mine[key] / theirs[key]
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _line(group: str, what: str, last: str, other: str, ratios: dict[str, float]) -> str:
    worst = max(ratios, key=lambda case: ratios[case])
    mean = geometric_mean(list(ratios.values()))
    return (
        f"{group}, {what}, {last} over {other}: geometric mean {mean:.2f}, "
        f"worst {ratios[worst]:.2f} ({worst})"
    )
