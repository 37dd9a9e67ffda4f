"""Parts that several models are built from."""
