"""Checks that a run makes while it trains: published weights arrive bit for bit, and trainer and
sampler agree."""
