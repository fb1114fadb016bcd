"""Any Pyro model and guide as something that can be federated: families, what a guide's parameters mean, tilted objectives, fusion rules."""
