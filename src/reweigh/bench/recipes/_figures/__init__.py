"""What single recipes add to their reports; figures of several recipes are in `reweigh.bench.report`."""
