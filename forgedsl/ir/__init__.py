"""Records that passes exchange: programs and graphs."""
