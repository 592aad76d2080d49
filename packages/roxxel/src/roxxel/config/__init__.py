"""A training run as one TOML file: what `roxxel plan` and `roxxel train` read.

An example::

    model = "model:make"            # returns (model, optimizer, loss_fn)
    save_path = "runs/first"        # paths are relative to the file
    seed = 0
    cache = "/local/ssd"            # folder for copies of corpora in buckets; optional
    cache_bytes = "200G"            # maximum size of this folder
    primary = "web"                 # which source is the primary; omit if it is "self"

    [sources]
    web = "data/web_*.rox"          # a file, folder, pattern or list
    code = { path = "data/code.rox", policy = 2 }
    math = { path = "math.bin", dtype = "uint16", tokenizer = "gpt2" }  # other formats

    [[phases]]                      # as `load_schedule` reads them
    steps = 1000
    batch_size = 16
    seq_len = 1025
    weights = { web = 0.7, code = 0.2, math = 0.1 }

    [model_args]                    # keywords of the function
    width = 256

    [trainer]                       # settings of `roxxel_train.Trainer`
    log_every = 10
    checkpoint_every = 500

    [eval]                          # a held-out loss
    sources = { self = "data/held_out.rox" }
    phases = [{ steps = 4, batch_size = 16, seq_len = 1025 }]

    # Several held-out sets have names, and the losses `eval_loss/web` and so on:
    # [eval.web]
    # path = "data/web_held_out.rox"
    # steps = 4
    # batch_size = 16
    # seq_len = 1025

    [proxy]                         # a small run with the epochs of this one; optional
    scale = 0.0625                  # or tokens = 2_000_000

    [mesh]
    preset = "fsdp"                 # or "data-parallel"; "hybrid" with groups = 2
    axes = { data = -1 }            # -1: all remaining devices

Reading or planning a config file does not start an accelerator.
"""

from __future__ import annotations

from roxxel.config._code import check_trusted, code_digest
from roxxel.config._declaration import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    ProxyConfig,
    RunConfig,
    TrainerConfig,
)
from roxxel.config._model_args import (
    check_columns,
    check_model_args,
    check_model_data,
    recipe_rate,
)
from roxxel.config._open import (
    HeldOut,
    begun_state,
    compare_held_out,
    open_curriculum,
    open_eval_curriculum,
    open_foreign_source,
    open_proxy,
    open_sampler,
    refused,
    sampler_of,
    whole_curriculum,
)
from roxxel.config._parse import (
    TOP_KEYS,
    load_config,
    load_schedule,
    parse_config,
    parse_schedule,
    schedule_from,
    used_config,
)
from roxxel.config._sweep import (
    Blend,
    Drawn,
    Grid,
    SweepConfig,
    blends_of,
    check_known,
    sweep_from,
    sweep_table,
)
from roxxel.config._text import (
    changed_text,
    config_differences,
    config_text,
    config_values,
    withdrawn_text,
)
from roxxel.config._trainer import (
    NOT_LEARNED,
    NOT_REPEATED,
    AsTrained,
    declaration_of,
    make_pair,
    make_trainer,
    with_total_steps,
)

__all__ = [
    "NOT_LEARNED",
    "NOT_REPEATED",
    "TOP_KEYS",
    "AsTrained",
    "Blend",
    "ConfigError",
    "Drawn",
    "EvalConfig",
    "Grid",
    "HeldOut",
    "MeshConfig",
    "ProxyConfig",
    "RunConfig",
    "SweepConfig",
    "TrainerConfig",
    "begun_state",
    "blends_of",
    "changed_text",
    "check_columns",
    "check_known",
    "check_model_args",
    "check_model_data",
    "check_trusted",
    "code_digest",
    "compare_held_out",
    "config_differences",
    "config_text",
    "config_values",
    "declaration_of",
    "load_config",
    "load_schedule",
    "make_pair",
    "make_trainer",
    "open_curriculum",
    "open_eval_curriculum",
    "open_foreign_source",
    "open_proxy",
    "open_sampler",
    "parse_config",
    "parse_schedule",
    "recipe_rate",
    "refused",
    "sampler_of",
    "schedule_from",
    "sweep_from",
    "sweep_table",
    "used_config",
    "whole_curriculum",
    "with_total_steps",
    "withdrawn_text",
]
