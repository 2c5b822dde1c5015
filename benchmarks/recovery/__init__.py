"""Measures how long a coordinator takes to load a long journal."""
