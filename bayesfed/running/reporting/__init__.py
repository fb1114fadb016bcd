"""`bayesfed report`: folders of results as one HTML page that needs nothing else, neither files nor
a network.

`charts` (curves as SVG), `clients`, `supports` (maps as PNG) and `methods` read the folders; `page`
fills the template ``page.html`` with them.
"""
