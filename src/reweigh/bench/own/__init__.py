"""Your own training, compared: a function, a program, an estimator, or scores that exist already."""
