"""What users call, each a facade: RunManager, run_grid, AskTell, fit, main, verify_first_epoch."""
