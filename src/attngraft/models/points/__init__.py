"""Point clouds: operations, layers and models."""
