"""What synthetic pairs are made of: images of a folder, warps of them, changes of light and camera."""
