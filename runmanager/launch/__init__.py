"""The facades that users call: RunManager, run_grid, AskTell, fit, main, verify_first_epoch."""
