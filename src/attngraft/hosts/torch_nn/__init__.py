"""Adapter for torch's own modules."""
