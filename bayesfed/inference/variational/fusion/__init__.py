"""Fusion rules: in which space the posteriors of clients become one.

==================  ============================  =========================  =======================
rule                space of the sum              scale of a client's rows   exact for
==================  ============================  =========================  =======================
`MeanParameters`    unconstrained parameters      either; local is too wide  nothing
`Wasserstein`       mean and sd                   either; local is too wide  nothing
`ReverseKL`         natural parameters, averaged  either; local is too wide  nothing
`ProductOfExperts`  natural parameters, added     local                      full covariance and a
                                                                             Gaussian likelihood
`PVI`               natural parameters, added     local                      the optimum of the
                                                                             family, at convergence
`SummedGradients`   gradients of the ELBO         local                      the optimum of the
                                                                             family, at convergence
==================  ============================  =========================  =======================

All of them are sums over clients. None needs the update of a single client, so they work under
secure aggregation and over the air.

In this order: `rule` (the protocol `Fusion`, and what a rule is given); `averages`; `sites` (the
rules of one factor a client); `gradients`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
