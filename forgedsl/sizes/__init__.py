"""Sizes of models, hosts, meshes and memories, for kinds of services and for the plan."""
