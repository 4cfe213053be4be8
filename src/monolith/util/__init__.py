"""Small helpers, and base types that several layers share (runs, hooks); imports only `errors`."""
