"""Tables and lines, drawn for terminals, notebooks and files."""
