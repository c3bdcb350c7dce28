"""What `forgec explain` and `forgec doc` say: pages of codes, origins of values, losses as
mathematics."""
