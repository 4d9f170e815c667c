"""Grafting: specifications, dry runs, installing and removing grafts, graft files."""
