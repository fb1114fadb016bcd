"""Links: how payloads travel from clients to the server, and how they are added there.

In the order of their imports: `digital` (a message for each payload), `compressed_sensing` (random
projections of leaves), `over_the_air` (the radio channel adds all payloads), `deadline` (a link
around another that counts seconds and joules, and leaves late clients out).
"""
