"""The command line, with one module per command. No other package imports it."""
