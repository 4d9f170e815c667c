"""Suites of images: functions of pixels, conditions made of them, and test sets."""
