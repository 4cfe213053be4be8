"""Settings, names, waits, protobuf and TFRecord frames for all layers."""
