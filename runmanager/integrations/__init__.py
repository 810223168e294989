"""Results in the tools of others."""
