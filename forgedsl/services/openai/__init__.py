"""Kind `openai`: a model behind an HTTP endpoint, used as a judge."""
