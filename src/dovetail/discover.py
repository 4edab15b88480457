"""What installed packages declare, and who owns what: read from metadata, importing nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import (
    Distribution,
    EntryPoint,
    distributions,
    entry_points,
    packages_distributions,
)
from typing import Any

GROUP = "dovetail.backends"
DYNAMO_GROUP = "torch_dynamo_backends"
OUR_DYNAMO_MODULE = "dovetail.dynamo"  # an entry point in here leads to dovetail's own registry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Declared:
    """One entry point."""

    point: EntryPoint
    distribution: str

    @property
    def name(self) -> str:
        """The name the backend is declared under."""
        return self.point.name

    @property
    def target(self) -> str:
        """Where the object is: ``module:attribute``."""
        return target_of(self.point)

    @property
    def tags(self) -> frozenset[str]:
        """The entry point's extras: ``"pkg.mod:Thing [debug, experimental]"``."""
        extras = self.point.value.partition("[")[2].partition("]")[0]
        return frozenset(tag.strip() for tag in extras.split(",") if tag.strip())

    @property
    def owner(self) -> str:
        """Distribution and module, for messages."""
        return describe_owner(self.distribution, self.target)


def declared() -> tuple[list[Declared], dict[str, Declared]]:
    """Backends declared for us, sorted; and those other packages declare for Dynamo alone."""
    points, dynamos = _points_of(GROUP, DYNAMO_GROUP)
    ours = sorted(map(_declared, points), key=lambda d: (d.name, d.distribution))
    others = (p for p in dynamos if target_of(p).split(":")[0] != OUR_DYNAMO_MODULE)
    return ours, {point.name: _declared(point) for point in others}


def declared_for_dynamo(name: str) -> Declared | None:
    """The entry point by which Dynamo finds a name, ours or not."""
    (points,) = _points_of(DYNAMO_GROUP)
    return next((_declared(point) for point in points if point.name == name), None)


def _points_of(*groups: str) -> list[list[EntryPoint]]:
    """The entry points of each group; a file of every installed package is read for it, once."""
    try:
        points = entry_points()
        return [list(points.select(group=group)) for group in groups]
    except Exception:  # one package's metadata cannot be read, and hides everybody's
        readable = list(_readable_entry_points())
        return [[point for point in readable if point.group == group] for group in groups]


def _declared(point: EntryPoint) -> Declared:
    return Declared(point, point.dist.name if point.dist else "")


def _readable_entry_points() -> Iterator[EntryPoint]:
    first: dict[str, Distribution] = {}
    for distribution in distributions():
        first.setdefault(distribution.name, distribution)
    for name, distribution in first.items():
        try:
            yield from distribution.entry_points
        except Exception as error:  # whatever a text file can make a parser raise
            log.warning("the entry points of %s cannot be read: %r", name, error)


def target_of(point: EntryPoint) -> str:
    """``module:attribute`` of an entry point, without its extras."""
    return point.value.partition("[")[0].replace(" ", "")


def qualified(obj: Any) -> str:
    """``module:attribute`` of an object."""
    name = getattr(obj, "__qualname__", type(obj).__qualname__)
    return f"{getattr(obj, '__module__', None) or '?'}:{name}"


def package_of(target: str) -> str:
    """The top-level package of ``module:attribute``."""
    return target.split(":")[0].split(".")[0]


def distribution_of(obj: Any) -> str:
    """The distribution an object's package was installed by; empty when it was not installed."""
    return _distribution_of_package(package_of(qualified(obj)))


@cache
def _distribution_of_package(package: str) -> str:
    if package == "__main__":
        return ""
    # This reads every installed package's file list: tens of milliseconds, so only on demand.
    return ", ".join(sorted(set(packages_distributions().get(package, ()))))


def describe_owner(distribution: str, target: str) -> str:
    """Who has a name: ``my-package (pkg.mod:Thing)``."""
    return f"{distribution} ({target})" if distribution else f"{target} (not from a package)"
