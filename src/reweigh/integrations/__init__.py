"""Adapters to the trainers people already use, one file each."""
