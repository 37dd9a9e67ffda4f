"""Does re-weighting help on *my* data? From a table or a folder of images to a verdict and a model."""
