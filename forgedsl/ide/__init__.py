"""What editors show, as functions of an open text: no protocol, no editor.

    Workspace (texts that are open) --document--> Document (tree, programs, findings, uses)
                                      --feature(document, offset)--> records with spans

workspace   texts, and what the compiler makes of them, once per change
uses        which place names what; definition, references, rename
context     where the cursor stands, by the tokens left of it
complete    what may be written there
hover       what stands there: type, value with its origin, formula, meaning
actions     fixes, "allow with a reason"
hints       what the plan chose, axes of locals; the plan in a line above the flow
outline     symbols and folding
colours     the meaning of names, for highlighting

forgedsl/lsp speaks the protocol; shell completion and tests call the functions.
"""
