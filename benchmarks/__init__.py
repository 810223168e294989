"""Every speed claim of the README, runnable: ``python -m benchmarks [name ...]``."""
