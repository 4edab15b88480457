"""Which values share a kernel, which live in memory and where, and in what order all runs."""
