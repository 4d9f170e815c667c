"""Detection of objects and instance masks."""
