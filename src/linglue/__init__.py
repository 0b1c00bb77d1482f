"""LinGlue: linear-time keypoint matching between photographs."""

from linglue.errors import LinGlueError
from linglue.matcher import Matcher, presets
from linglue.network.config import LinGlueConfig
from linglue.network.linglue import LinGlue
from linglue.types import Features, ImageSize, Matches

__all__ = ["Features", "ImageSize", "LinGlue", "LinGlueConfig", "LinGlueError", "Matcher", "Matches", "presets"]
