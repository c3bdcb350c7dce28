"""The records that passes hand on: programs, graphs."""
