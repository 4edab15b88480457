"""From calls to code: which kernel serves a call, and a segment as a Program."""
