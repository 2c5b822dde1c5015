"""Measures how long committing clients stall when coordinators come and go."""
