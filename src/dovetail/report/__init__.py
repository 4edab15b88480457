"""What a compilation did, for people: ``dovetail.explain``."""

from dovetail.report.report import Report, explain

__all__ = ["Report", "explain"]
