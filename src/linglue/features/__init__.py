"""Front-ends: images in, `Features` out. One small adapter each."""
