"""The ways to compile a segment: in this process, by way of bytes, in worker processes."""
