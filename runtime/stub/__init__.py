"""Rehearsals (`forgec run --stub`): the real controller and meshes, services that only sleep."""
