"""Kind `vllm`: an engine that samples."""
