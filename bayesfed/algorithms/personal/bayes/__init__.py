"""pFedBayes: the `objective` of a client, and the `recipe`."""
