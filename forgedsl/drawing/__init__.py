"""The graph and the plan as pictures: text, dot, Mermaid, SVG, HTML."""
