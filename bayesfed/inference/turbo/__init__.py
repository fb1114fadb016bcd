"""The posterior over supports, precisions and weights of a declared model (D-Turbo-VBI).

In this order: `elbo` (a client trains q(w)); `blocks` (closed forms for q(s) and q(rho), Module A);
`transitions` (fitting a Markov grid); `exchange` (Modules A and B by turns, on the server);
`support_posterior` (the result).
"""
