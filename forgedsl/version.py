"""The version of the package, apart from its face: who asks for it imports nothing else."""

VERSION = "0.1.0"
