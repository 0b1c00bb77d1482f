"""LinGlue: linear-time keypoint matching between photographs."""

from linglue.errors import LinGlueError
from linglue.matcher import Matcher, presets
from linglue.model.config import LinGlueConfig
from linglue.model.network import LinGlue
from linglue.types import Features, ImageSize, Matches

__all__ = ["Features", "ImageSize", "LinGlue", "LinGlueConfig", "LinGlueError", "Matcher", "Matches", "presets"]
