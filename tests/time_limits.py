"""Limits of the time that something takes, on a machine that may have much else to do."""

AT_ONCE = 30.0
"""Seconds for what takes an idle machine milliseconds, in place of hours: an end of a wait."""
