"""The facades that users call: RunManager, run_grid, fit, main, verify_first_epoch."""
