"""Training on data that never end: scores before learning, idle sources, hours of the day."""
