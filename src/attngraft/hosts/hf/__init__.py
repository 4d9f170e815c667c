"""Adapters of Hugging Face's `transformers`, imported only for its models: a file per family, or a row of `families`."""
