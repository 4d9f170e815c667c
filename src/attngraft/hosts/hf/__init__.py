"""Adapters of Hugging Face's `transformers`, imported only for its models: all are rows of the table in `families`."""
