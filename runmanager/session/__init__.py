"""Sessions: one grid from its options to its outcome, planned, checked, executed and concluded."""
