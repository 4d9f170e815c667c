"""Suites for images: functions of pixels, the conditions that use them, and test sets."""
