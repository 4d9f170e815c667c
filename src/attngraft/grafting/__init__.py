"""Graft specifications, dry runs, installation and removal of grafts, and graft files."""
