"""Adapters of Hugging Face's `transformers`, imported only for its models: one file per family, or one row of `families`."""
