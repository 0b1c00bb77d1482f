"""Cameras, poses and what follows from them; pixel conventions, the only half pixels of the project."""
