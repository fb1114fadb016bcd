"""What may leave a site: the texts of refusals, read from the source (`texts`), and the letters of
sites whose rows are full of markers (`markers`).
"""
