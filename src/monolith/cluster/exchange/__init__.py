"""Keys and gradients on their way to shards: equal ones folded, rows pooled on their return."""
