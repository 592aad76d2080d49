"""Bridges to other libraries; each module imports only its own library."""
