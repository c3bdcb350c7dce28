"""Kind `vllm`: a vLLM engine, which samples completions."""
