"""Kind `openai`: a model behind an endpoint, which judges."""
