"""Kind `vllm` at run time: an engine that samples. For the compiler: forgedsl/services/vllm."""
