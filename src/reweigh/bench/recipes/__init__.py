"""Experiments, one file each: the file name is the name on the command line."""
