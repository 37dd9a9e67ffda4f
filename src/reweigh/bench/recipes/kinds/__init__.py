"""What recipes of one kind share, and what `reweigh compare` shares with them."""
