"""From a folder of photographs to matches, a 3D model and camera poses: stages that survive interruption."""
