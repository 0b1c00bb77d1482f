"""The one exception users meet: its text is a single line that names the file, the value and what is expected."""


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
