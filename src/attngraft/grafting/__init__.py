"""Grafting: joins mechanisms and hosts. The little language, the dry run, the surgery and its undoing, graft files."""
