"""The files of a run, and the code that writes and reads them."""
