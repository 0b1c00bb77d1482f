"""Measuring matchers on data with known truth, all on the same keypoints. Never imported by inference.

Example:
    >>> from linglue import evaluation
    >>> result = evaluation.pose(["entry-P10"], ["mnn", "ratio", "linglue"], "work")  # doctest: +SKIP
    >>> print(result.text())  # doctest: +SKIP
"""

from linglue.evaluation.result import Result
from linglue.evaluation.tasks.ablation import evaluate as ablation
from linglue.evaluation.tasks.front_ends import evaluate as front_ends
from linglue.evaluation.tasks.homography import evaluate as homography
from linglue.evaluation.tasks.localization import evaluate as localization
from linglue.evaluation.tasks.pose import evaluate as pose
from linglue.evaluation.tasks.reconstruction import evaluate as reconstruction
from linglue.evaluation.tasks.scalability import evaluate as scalability
from linglue.evaluation.tasks.scores import evaluate as scores

__all__ = [
    "Result",
    "ablation",
    "front_ends",
    "homography",
    "localization",
    "pose",
    "reconstruction",
    "scalability",
    "scores",
]
