"""Learning schemes around the losses, by the recipe that has several of them."""
