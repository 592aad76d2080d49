"""Makes the batch of a step: loads items, collates them, builds global arrays.

`indexed` and `streamed` load items. `collate` makes a batch of items. `iterate` makes
the batches of the next steps on threads and returns them in the order of the steps.
"""
