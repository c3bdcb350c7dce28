"""Draws graph and plan as text, DOT, Mermaid, SVG and HTML."""
