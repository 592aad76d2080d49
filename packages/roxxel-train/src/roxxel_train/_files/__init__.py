"""The files of a run, on a disk or in a bucket: its folder, its records and its log."""
