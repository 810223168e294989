"""Searches and pruners: they choose the next runs and stop runs early."""
