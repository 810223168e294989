"""What runs have left behind: loading it, comparing runs, writing tables, removing runs."""
