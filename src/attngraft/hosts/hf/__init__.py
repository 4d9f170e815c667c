"""Adapters of Hugging Face's `transformers`: a file each, and what they share. Imported where such a model is met."""
