"""Writes the generated files of the repository: `python -m forgedsl.docs`."""
