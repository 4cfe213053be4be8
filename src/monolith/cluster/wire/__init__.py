"""The bytes of messages between clients and servers; `docs/wire.md` is their specification."""
