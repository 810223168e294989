"""A grid from its options to its outcome: what is planned, executed, checked and concluded."""
