"""What is known of times: latencies of a plan or a run, faults, the result of a simulation."""
