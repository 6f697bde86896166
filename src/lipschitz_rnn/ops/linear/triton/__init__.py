"""The linear scan as a GPU kernel."""
