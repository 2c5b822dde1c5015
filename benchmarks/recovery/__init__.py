"""How long a coordinator takes to know a long journal again."""
