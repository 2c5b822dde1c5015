"""Pure parts of the metadata store: keys and values, the projection, what sweeps may delete."""
