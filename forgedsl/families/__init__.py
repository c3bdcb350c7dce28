"""Model families for the compiler: a file each; all are in `FAMILIES`."""
