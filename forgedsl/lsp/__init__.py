"""`forgec lsp`: forgedsl/ide over the Language Server Protocol, with pygls.

convert   spans and records to positions and messages
server    which message asks for which feature, and when findings are sent
"""
