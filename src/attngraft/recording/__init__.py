"""Record attention maps and other tensors of any host, reduce them, and map tokens back to the image."""
