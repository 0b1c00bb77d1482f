"""Files in and out. Conversions between coordinate conventions happen in this package and nowhere else."""
