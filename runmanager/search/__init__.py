"""Which runs are executed next."""
