"""What does the runs: processes of this machine, a Ray cluster, or processes that train together."""
