"""Measuring: predictions are saved, then scored. Never imported by inference."""
