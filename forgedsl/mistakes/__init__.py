"""Common mistakes in .forge files, and what was probably meant.

common         mistakes of syntax: a missing comma, a quote of the wrong kind, `=` for `:`
python_syntax  Python syntax that ForgeDSL does not have
other_tools    names of TRL, torchforge, verl and torch
tensor_calls   calls of torch in a body
suggest        nearest names for a misspelt one
syntax_help    turns a parser error into a diagnostic, with the tables above
"""
