"""From the number of a step to its batch: items, values on the host, global arrays.

`indexed` and `streamed` load items. `collate` makes a batch of items. `iterate` makes
the batches of the next steps on threads and returns them in the order of the steps.
"""
