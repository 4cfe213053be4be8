"""Small helpers without state that every layer may use; imports nothing else of the package."""
