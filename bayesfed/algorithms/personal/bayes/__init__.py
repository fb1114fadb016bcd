"""pFedBayes: the `objective` of a client, the `posterior` over a network's weights, and the
`recipe`.
"""
