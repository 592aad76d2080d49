"""The files of steps: on a disk, or in a bucket."""
