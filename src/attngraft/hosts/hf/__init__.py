"""Adapters of Hugging Face's `transformers`, as a table in `families`. Imported only for models of transformers."""
