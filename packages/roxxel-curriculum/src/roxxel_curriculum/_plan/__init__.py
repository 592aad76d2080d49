"""Solves declared phases, and describes the solution as a plan for people."""
