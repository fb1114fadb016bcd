"""The methods that papers compare with, one file each."""
