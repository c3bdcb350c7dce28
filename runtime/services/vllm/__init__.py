"""Kind `vllm` at run time: an engine that samples. Its facts: forgedsl/services/vllm."""
