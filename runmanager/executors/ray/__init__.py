"""The executor "ray": runs on a Ray cluster."""
