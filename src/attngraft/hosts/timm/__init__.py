"""Adapters of timm's families: a file each, and what they share."""
