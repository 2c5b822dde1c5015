"""Settings of programs: files of logtx and of Kafka's tools, and settings of a command line.

Imports `journal` alone.
"""
