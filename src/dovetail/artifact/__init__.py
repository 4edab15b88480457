"""Exported models: a program, its constants and its state."""

from dovetail.artifact.exported import Artifact, export

__all__ = ["Artifact", "export"]
