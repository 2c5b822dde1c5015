"""What the metadata store takes: projecting, ranges, from a write to its watcher."""
