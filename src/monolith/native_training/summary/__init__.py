"""Give summaries of architecture weights and feature insight for TensorBoard."""
