"""Adapters of Hugging Face's `transformers`, a table in `families` that is imported on demand."""
