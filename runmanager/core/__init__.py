"""One run, from its hyperparameters to its record, and the grid of runs."""
