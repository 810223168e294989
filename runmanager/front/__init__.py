"""The facades that users call: RunManager, run_grid, fit, main."""
