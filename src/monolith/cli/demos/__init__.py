"""Demonstrations that run on one machine."""
