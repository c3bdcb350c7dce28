"""Model families: what the compiler knows of each, one file a family; all in `FAMILIES`."""
