"""Agents: the policy behind OpenAI's protocol, and trajectories of what it answered there."""
