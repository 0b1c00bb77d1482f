"""Pictures of what was found: matches and keypoints (OpenCV only), models and curves (`model`, `plots`: matplotlib)."""

from linglue.viz.canvas import compare, save_image
from linglue.viz.matches import correctness, draw_keypoints, draw_matches, save_drawing

__all__ = ["compare", "correctness", "draw_keypoints", "draw_matches", "save_drawing", "save_image"]
