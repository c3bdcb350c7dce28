"""The Python API: a pipeline and its runs as objects, for scripts and notebooks.

    sums.forge --load--> Pipeline --lint, plan, graph, loss--> pages and functions
                             `--run, start--> Running --result--> RunResult

Nothing is done here that a command does not do: a run is `forgec run` in a process of its own.
"""
