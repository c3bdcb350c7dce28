"""Mistakes that people make often, and what they meant.

common         mistakes of syntax: a missing comma, a quote of the wrong kind, `=` for `:`
python_syntax  Python that is no ForgeDSL
other_tools    names of TRL, torchforge, verl and torch
suggest        nearest names for a misspelt one
syntax_help    from the place where the parser stopped to a diagnostic, by the tables above
"""
