"""Each call to a backend, with reasons."""
