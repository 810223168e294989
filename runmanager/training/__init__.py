"""Training within one run: the hooks of a loop, the open run, its epochs and evaluations."""
