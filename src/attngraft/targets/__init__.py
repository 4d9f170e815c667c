"""Whatever can be analyzed, evaluated or exported: runs, exported folders, host names, and images for them."""
