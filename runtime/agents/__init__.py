"""Agents: the policy behind OpenAI's protocol, and trajectories made of its answers."""
