"""This folder is on the import path, so that tests in it can use ``stability_examples``."""
