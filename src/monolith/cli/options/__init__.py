"""Groups of options of commands, and the panels of their help pages."""
