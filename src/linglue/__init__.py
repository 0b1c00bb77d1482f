"""LinGlue: linear-time keypoint matching between images.

The public names are loaded when they are first used: `import linglue` itself is light.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linglue.errors import LinGlueError as LinGlueError
    from linglue.matcher import Matcher as Matcher
    from linglue.matcher import MatcherConfig as MatcherConfig
    from linglue.matcher import PairMatcher as PairMatcher
    from linglue.matching.match import MatchingConfig as MatchingConfig
    from linglue.network.linglue import LinGlue as LinGlue
    from linglue.network.weights import LinGlueConfig as LinGlueConfig
    from linglue.network.weights import presets as presets
    from linglue.types import Features as Features
    from linglue.types import ImageSize as ImageSize
    from linglue.types import Matches as Matches

_HOMES = {
    "Features": "linglue.types",
    "ImageSize": "linglue.types",
    "LinGlue": "linglue.network.linglue",
    "LinGlueConfig": "linglue.network.weights",
    "LinGlueError": "linglue.errors",
    "Matcher": "linglue.matcher",
    "MatcherConfig": "linglue.matcher",
    "Matches": "linglue.types",
    "MatchingConfig": "linglue.matching.match",
    "PairMatcher": "linglue.matcher",
    "presets": "linglue.network.weights",
}

__version__ = version("linglue")
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'linglue' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
