"""Adapters of Hugging Face's `transformers`, one per row of the table in `families`.

They are imported only when a model of `transformers` is used.
"""
