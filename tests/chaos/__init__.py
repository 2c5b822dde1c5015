"""The chaos runs, and the checker of their histories."""
