"""`forgec build`: everything a program compiles to, as files that people read."""
