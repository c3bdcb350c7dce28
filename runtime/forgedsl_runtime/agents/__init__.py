"""Agents: the policy behind OpenAI's and Anthropic's protocols, and trajectories of its answers."""
