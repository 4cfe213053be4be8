"""Files of tables that other processes write and read: those that hold the rows."""
