"""The display of a grid: the live display or plain lines, and the panel at the end."""
