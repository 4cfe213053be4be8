"""Sources of samples that never end, and what is done with events before they are samples."""
