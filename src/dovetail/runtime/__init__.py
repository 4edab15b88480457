"""Running what was compiled."""
