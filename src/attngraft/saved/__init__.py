"""Models on disk: exported folders and their manifests."""
