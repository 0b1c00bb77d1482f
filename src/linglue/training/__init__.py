"""Learning: pairs from several sources, features cached once, losses, a loop that resumes to the bit."""
