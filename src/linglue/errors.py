"""The one exception users meet: its text is a single line that names the file, the value and what is allowed."""


class LinGlueError(ValueError):
    """Something the caller gave cannot be used. The command line prints the text as it is and exits with code 1."""
