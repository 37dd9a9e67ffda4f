"""Training: one driver for every program, a stacked one for many small trainings, on any device."""
