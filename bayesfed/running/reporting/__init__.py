"""`bayesfed report`: folders of results as one HTML page that needs nothing else, neither files nor
a network.

`clients` and `supports` (maps as PNG) read the folders; `page` fills the template ``page.html``
with them, and with the picture of the learning curves.
"""
