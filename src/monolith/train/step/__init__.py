"""Parts of a step of training."""
