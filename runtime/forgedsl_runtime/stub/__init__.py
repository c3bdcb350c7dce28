"""Rehearsals (`forgec run --stub`): the real controller and meshes, with services that only
sleep."""
