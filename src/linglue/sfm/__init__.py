"""From a folder of images to matches, a 3D model and camera poses: stages that survive interruption."""
