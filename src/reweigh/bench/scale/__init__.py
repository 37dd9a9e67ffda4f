"""One training on many processes: input that streams, sharded checkpoints, and what `torchrun` starts."""
