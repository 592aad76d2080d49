"""One save, and which steps it keeps."""
