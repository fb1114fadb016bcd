"""Fusion of networks that clients trained alone, in one round: by averages, by Fisher information
or by products of Laplace approximations.
"""
