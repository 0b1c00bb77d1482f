"""Learning from LightGlue: its first layers, made narrower and sparser, are where context networks start."""
