"""One file per command: its options, their help, and what it calls; what takes long to import comes in the call."""
