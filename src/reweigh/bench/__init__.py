"""Experiments: recipes, runs, statistics, reports. Needs the `bench` extra."""
