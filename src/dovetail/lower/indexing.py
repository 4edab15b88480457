"""Gathers and joins: embedding, index, cat, pad."""
