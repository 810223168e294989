"""The event files of runs, and the TensorBoard server that shows them."""
