"""Camera poses of new images in a model."""
