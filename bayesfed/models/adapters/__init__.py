"""Low-rank adapters (LoRA) over frozen weights: layers, sketches of their slices, priors and a
guide, and files that `peft` reads.

Lowest first: `lora_layers` and `sketching`; `lora` (networks with adapters, and back); `beliefs`
(priors and a guide); `peft_saving`; `peft_loading`.
"""
