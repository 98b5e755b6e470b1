"""Training script for the small models that ship with the course."""
