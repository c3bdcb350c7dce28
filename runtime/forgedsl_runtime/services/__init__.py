"""The services of a job over Monarch: clients per kind, and the `Endpoints` built from them."""
