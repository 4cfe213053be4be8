"""Pure functions on tensors, and the door to the compiled core."""
