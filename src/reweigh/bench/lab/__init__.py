"""Experiments as values: tables of rows and columns, plans, runs on disk, results and their statistics."""
