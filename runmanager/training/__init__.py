"""Training within one run: the manager and what it needs."""
