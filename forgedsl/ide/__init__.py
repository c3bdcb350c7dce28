"""Features of editors as functions of an open text, independent of protocol and editor.

    Workspace (texts that are open) --document--> Document (tree, programs, findings, uses)
                                      --feature(document, offset)--> records with spans

workspace   texts, and what the compiler makes of them, once per change
uses        definitions and uses of names; references, rename
context     context of the cursor, from the tokens left of it
complete    completions at the cursor; paths in strings, in paths; types in field_types
calls       parameters of the call at the cursor
hover       information at the cursor: type, value with origin, formula, meaning
actions     fixes, "allow with a reason"
meant       what a wrong name was meant to be, also in other tools
hints       choices of the plan and axes of locals, inline; the plan, above the flow
outline     symbols and folding
colours     semantic highlighting of names
lint_worker  a second process, which checks half of the profiles

forgedsl/lsp speaks the protocol; shell completion and tests call the functions.
"""
