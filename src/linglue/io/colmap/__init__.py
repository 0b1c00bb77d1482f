"""COLMAP's files: its database (`database`), changed all or nothing (`edit`), and matches as text (`text`)."""
