"""Messages of `bayesfed.federated`."""
