"""Tracking backends in addition to MLflow."""
