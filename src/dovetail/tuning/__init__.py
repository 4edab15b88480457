"""Choice by measuring, for any backend that names candidates: ``mode="max-autotune"``."""
