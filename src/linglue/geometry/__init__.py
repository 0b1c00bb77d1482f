"""Cameras, poses and COLMAP's convention: the only half pixel."""
