"""Adapters of timm's models: one file per family, or one row of the table in `families`."""
