"""Training of LinPoint, the front-end in the package: teachers, pairs of crops, losses, the loop."""
