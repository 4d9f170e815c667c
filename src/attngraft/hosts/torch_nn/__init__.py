"""Adapters of torch's own modules."""
