"""The optional features: each is a module or a folder with a name that users know."""
