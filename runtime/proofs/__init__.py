"""Proofs that a run makes of itself while it trains."""
