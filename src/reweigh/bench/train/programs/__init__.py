"""What differs between trainings: what a step is, and how its result is scored."""
