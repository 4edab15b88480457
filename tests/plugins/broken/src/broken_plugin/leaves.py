"""Leaves the interpreter on import."""

import sys

sys.exit("no licence")
