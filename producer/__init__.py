"""Producer, Transaction and Branch."""
