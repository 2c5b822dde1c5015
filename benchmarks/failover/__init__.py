"""How long committing clients stall when coordinators come and go: `make bench-failover`."""
