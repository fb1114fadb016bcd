"""What calls mean that look wrong and are not: by callable, parameter and what is odd about it."""

ANY_SEED = "any whole number is a seed"
SAME_KIND = "both are numbers of the same kind, and each is in the other's range"
NOTHING = "none of them"
MEANINGS = {
    "Dataset.inputs swapped": "a column of numbers with class labels of more than one column",
    "Device.loss_db_at_1_km range": "a loss in decibels, any number",
    "FactorGraph.log_constant range": "the logarithm of a factor, any number",
    "FedBuff.size swapped": SAME_KIND,
    "Gaussian.centre shape": "a centre for each entry of a matrix",
    "Gaussian.centre range": "a mean, any number",
    "Key.seed range": ANY_SEED,
    "Method.cites shape": NOTHING,
    "OverTheAir.snr_db range": "decibels, any number",
    "Result.history shape": "no round was made",
    "SpikeAndSlab.inclusion swapped": SAME_KIND,
    "bayesian_lora.seed range": ANY_SEED,
    "cnn.channels shape": "no convolutions",
    "federated_svi.seed range": ANY_SEED,
    "held_out.strata shape": "no rows",
    "iid.rows swapped": SAME_KIND,
    "infer.state shape": "the exact method of a small grid has no state to begin from",
    "local_privacy.clip swapped": SAME_KIND,
    "private.clip swapped": SAME_KIND,
    "run.seed range": ANY_SEED,
}
# Values that the package makes and hands to functions of its users.
HANDED = ("Turn",)
