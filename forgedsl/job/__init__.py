"""Parts of a job that kinds of services are made of."""
