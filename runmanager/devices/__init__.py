"""Which devices there are, and how tensors reach them."""
