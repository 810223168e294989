"""What a grid shows while it runs."""
