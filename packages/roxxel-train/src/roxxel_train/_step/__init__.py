"""The update of model and optimizer: loss, sharding, compilation. Logs nothing."""
