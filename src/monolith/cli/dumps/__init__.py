"""Import and inspect the table dumps of the reference system."""
