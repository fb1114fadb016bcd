"""Parts of `bring.py`: networks and rows as strangers have them."""
