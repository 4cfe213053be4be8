"""Settings, names, waits and protobuf for all layers; imports only `errors`."""
