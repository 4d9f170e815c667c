"""Adapters of timm's models: a file per family, or a row of the table in `families`."""
