"""What the manager costs, measured: ``python -m benchmarks [name ...]``."""
