"""Images that do not fit into memory: reading, changing and batching them."""
