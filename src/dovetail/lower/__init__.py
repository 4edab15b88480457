"""From calls to code: a segment as a Program, or as values that compute their elements."""
