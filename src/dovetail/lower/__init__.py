"""From calls to values that know how to compute their elements."""
