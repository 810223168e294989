"""What a table of runs says: which is best, what matters, what differs, what failed."""
