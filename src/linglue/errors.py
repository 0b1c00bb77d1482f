"""The one exception users meet: its text is a single line that names the file, the value and what is expected."""

from __future__ import annotations

import sys
from collections.abc import Callable

_NO_MEMORY = ("allocate memory", "not enough memory", "insufficient memory", "failed to allocate", "out of memory")


class LinGlueError(ValueError):
    """Something the caller gave cannot be used. The command line prints the text as it is and exits with code 1.

    Example:
        >>> import linglue
        >>> try:
        ...     linglue.LinGlueConfig.preset("medium")
        ... except linglue.LinGlueError as error:
        ...     print(str(error).partition(",")[0])
        preset is 'medium'
    """


def exit_code(work: Callable[[], None]) -> int:
    """0 after the work of a command, 1 where something cannot be used, which is said in one line on standard error.

    Args:
        work: all that the command does.

    Example:
        >>> exit_code(lambda: None)
        0
    """
    try:
        work()
    except LinGlueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was short, as Python and numpy, torch or OpenCV do.

    Args:
        error: any.
    """
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(text in said for text in _NO_MEMORY)
