"""Records of predictions and counters of steps, and the hooks that write them."""
