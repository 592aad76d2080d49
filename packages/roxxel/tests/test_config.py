from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import tomlkit
from hypothesis import assume, given
from hypothesis import strategies as st
from roxxel import open_run
from roxxel.config import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    RunConfig,
    TrainerConfig,
    changed_text,
    config_text,
    declaration_of,
    load_config,
    load_schedule,
    make_trainer,
    open_curriculum,
    open_eval_curriculum,
    parse_config,
)
from roxxel_curriculum import Curriculum, Phase, Policy, Schedule
from roxxel_train import RunFolder
from roxxel_train.config import Settings, TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable

from .helpers import make_model
from .runs import CONFIG, keep, kept_configs, write_project

OFF = " or None (false in TOML)"
"""What follows the values of a setting that may be off."""

SMALLEST = """
sources = { self = "a.rox" }
phases = [{ steps = 1, batch_size = 2, seq_len = 8 }]
"""


def parse(text: str) -> RunConfig:
    return parse_config(text, Path("here") / "first.toml")


texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=9
)
counts = st.integers(1, 10**12)
values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=5,
)
weights = st.none() | st.fixed_dictionaries(
    {"self": st.floats(0.01, 1.0)}, optional={"code": st.integers(0, 9)}
)
phases = st.builds(
    Phase, steps=counts, batch_size=counts, seq_len=counts, weights=weights
) | st.builds(Phase, epochs=st.floats(0.1, 9.0), batch_size=counts, seq_len=counts)
policies = st.sampled_from(["drop", "repeat", "stop", 2, Policy(2, "stop")])
schedules = st.builds(
    Schedule,
    phases=st.lists(phases, min_size=1, max_size=3).map(tuple),
    longest=st.none() | counts,
    policies=st.dictionaries(texts, policies, max_size=2),
    max_epochs=st.none() | counts,
    overlap=st.integers(0, 1),
    skips=st.sampled_from([(), ((3, 1),), ((3, 1), (7, 2))]),
    without=st.dictionaries(
        texts, texts | st.lists(counts | st.just([3, 7]), min_size=1), max_size=2
    ),
)
paths = st.lists(texts, min_size=1, max_size=2).map(tuple)
sources = st.dictionaries(texts, paths, max_size=2).flatmap(
    lambda others: st.builds(lambda own: {"self": own, **others}, paths)
)
options = st.fixed_dictionaries(
    {},
    optional={
        "log_every": counts,
        "best_metric": texts,
        "fields": st.just(("tokens", "positions")),
        "strict_sharding": st.booleans(),
        "profile": st.just((3, 7)),
        "hang_after_s": st.none() | st.floats(0.1, 1e6),
        "keep_every": counts | st.just("6h"),
        "gc_every": st.none() | counts,
        "verify_every": st.none() | counts,
        "log_to": st.just(("tensorboard",))
        | st.just({"tensorboard": {"log_dir": "tables"}}),
        "eval_fn": st.just("a.b:score"),
        "skip_spikes": st.just({}) | st.just({"window": 32, "what": ("loss",)}),
    },
).map(lambda given: TrainerConfig(**cast("dict[str, Any]", given)))
meshes = st.builds(
    MeshConfig,
    preset=st.sampled_from(["fsdp", "data-parallel"]),
    axes=st.just({"data": -1, "model": 2}),
    batch_axes=st.sampled_from([(), ("data",), ("data", "model")]),
) | st.builds(MeshConfig, preset=st.just("hybrid"), groups=st.integers(1, 9))
configs = st.builds(
    RunConfig,
    file=st.just(Path("here") / "first.toml"),
    sources=sources,
    schedule=schedules,
    model=st.none() | st.just("a.b:make"),
    model_args=st.dictionaries(texts, values, max_size=3),
    seed=st.integers(-9, 2**40),
    save_path=st.none() | texts,
    relative_to=st.sampled_from([".", "../there"]),
    trainer=options,
    mesh=st.none() | meshes,
    eval=st.none()
    | st.builds(EvalConfig, sources, schedules)
    | st.dictionaries(
        st.sampled_from(["web", "code", "two words"]),
        st.builds(EvalConfig, sources, schedules),
        min_size=1,
    ),
    cache=texts.filter(lambda text: "://" not in text),
    cache_bytes=st.none() | counts,
)


@given(configs)
def test_a_config_comes_back_from_its_text(config: RunConfig) -> None:
    assert parse_config(config_text(config), config.file) == config


def test_the_name_of_a_primary_comes_back_from_the_text_of_a_config() -> None:
    text = CONFIG.replace("self =", '"the own web" =')
    config = parse(text.replace("seed = 3", 'primary = "the own web"'))

    again = parse_config(config_text(config), config.file)
    assert (again, again.schedule.primary) == (config, "the own web")


def test_the_example_says_what_it_means() -> None:
    config = parse(CONFIG)

    assert config.sources == {"self": ("web_*.rox",), "code": ("code.rox",)}
    assert config.schedule.policies == {"code": 2}
    assert config.model_args == {"width": 2}
    assert config.trainer == TrainerConfig(
        log_every=1, checkpoint_every=2, eval_every=3, hang_after_s=600.0
    )
    assert config.run_folder == Path("here/run")


def test_a_schedule_is_spelt_as_in_a_schedule_s_own_file(tmp_path: Path) -> None:
    schedule = """
overlap = 1
skips = [[2, 3]]
policies = { code = "stop" }

[[phases]]
epochs = 0.5
batch_size = 2
seq_len = 8
weights = { self = 0.5, code = 0.5 }
"""
    (tmp_path / "schedule.toml").write_text(schedule)
    config = parse('sources = { self = "a.rox", code = "b.rox" }\n' + schedule)

    assert config.schedule == load_schedule(tmp_path / "schedule.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed = ", "first.toml: not TOML: "),
        ("save_path = runs" + SMALLEST, "`save_path = runs`; put text in quotes"),
        ("seed = 1," + SMALLEST, "`seed = 1,`; put text in quotes, end a line after"),
        ("seed" + SMALLEST, "not TOML: Expected '='"),
        ("seed = 1\nseed = 2" + SMALLEST, "write each key and each table once"),
        ("sead = 1" + SMALLEST, "the file has no key 'sead'; did you mean 'seed'?"),
        (
            "zzz = 1" + SMALLEST,
            "the file has no key 'zzz'; the nearest of its ",
        ),
        ("log_every = 1" + SMALLEST, "no key 'log_every'; write it under [trainer]"),
        ("preset = 'fsdp'" + SMALLEST, "no key 'preset'; write it under [model_args]"),
        (
            SMALLEST + "[trainer]\nlog_evry = 1",
            "[trainer] has no key 'log_evry'; did you mean 'log_every'?",
        ),
        (
            SMALLEST + "[trainer]\nseed = 1",
            "[trainer] has no key 'seed'; write it above the first [table]",
        ),
        ("seed = '1'" + SMALLEST, "seed must be an integer, got '1'"),
        ("seed = true" + SMALLEST, "seed must be an integer, got True"),
        (
            "save_path = ''" + SMALLEST,
            f"save_path must be a non-empty string{OFF}, got ''",
        ),
        (
            "model = 'tiny'" + SMALLEST,
            f"model must be \"module:function\"{OFF}, got 'tiny'",
        ),
        ("model = 'a b:c'" + SMALLEST, 'model must be "module:function"'),
        ("model = 'a:'" + SMALLEST, 'model must be "module:function"'),
        (
            "cache = 'c'\ncache_bytes = '5 GB'" + SMALLEST,
            'cache_bytes must be bytes, 1 or more, such as 4096, "64K", "1M", "2G" or',
        ),
        (
            "cache = 's3://bucket/c'" + SMALLEST,
            f"cache must be the path of a folder on a local disk{OFF}, got",
        ),
        ("cache_bytes = 5" + SMALLEST, "cache_bytes is given without cache; write"),
        ("trainer = 3" + SMALLEST, "trainer must be a table, got 3"),
        (
            SMALLEST + "[trainer]\nlog_every = 0",
            "trainer.log_every must be an integer of 1 or more, got 0",
        ),
        (
            SMALLEST + "[trainer]\nkeep_every = 'six'",
            "trainer.keep_every must be a number of steps of 1 or more, or a duration",
        ),
        (
            SMALLEST + "[trainer]\nleraning = 1",
            "docs/reference/config lists all",
        ),
        (
            SMALLEST + "[trainer]\nkeep_every = 0",
            "trainer.keep_every must be a number of steps of 1 or more, or a duration",
        ),
        (
            SMALLEST + "[trainer]\nprofile = [3, 3]",
            "profile=(3, 3) holds no steps; give 0 <= start < stop",
        ),
        (
            SMALLEST + "[trainer]\nfields = 'tokens'",
            "trainer.fields must be a list, each entry ",
        ),
        (
            SMALLEST + "[trainer]\ncheck = 'all'",
            'trainer.check must be "blocks" or "headers", got \'all\'',
        ),
        (
            SMALLEST + "[trainer]\nstrict_sharding = 1",
            "trainer.strict_sharding must be true or false, got 1",
        ),
        (
            SMALLEST + "[mesh]\npreset = 'zero'",
            'must be "data-parallel" or "fsdp" or "hybrid", got \'zero\'',
        ),
        (
            SMALLEST + "[mesh]\naxes = { data = 0 }",
            "mesh: axes.data must be a number of devices, or -1 for all rem",
        ),
        (
            SMALLEST + "[mesh]\nbatch_axes = ['data']",
            "mesh: batch_axes names 'data', which is not among axes",
        ),
        (
            SMALLEST + "[mesh]\naxes = { a = 2, context = 4 }\nbatch_axes = ['a']",
            'columns of long ones; write batch_axes = ["a", "context"]',
        ),
        (
            SMALLEST + "[mesh]\npreset = 'hybrid'",
            'mesh: groups belongs to preset = "hybrid"; write both, or neither',
        ),
        (
            SMALLEST + "[mesh]\npreset = 'fsdp'\ngroups = 2",
            'mesh: groups belongs to preset = "hybrid"',
        ),
        (
            SMALLEST + "[mesh]\npreset='hybrid'\ngroups=2\naxes = { data = -1 }",
            'mesh: preset = "hybrid" chooses its axes; leave axes out',
        ),
        ("", "the file has no sources; write [sources]"),
        ("[sources]\nself = 'a'", "the file has no phases; write [[phases]]"),
        (
            SMALLEST.replace("self", "web"),
            (
                "[sources] names no primary corpus, which is 'self'; write self = "
                '"path", or name another by primary = "web" above the first [table]'
            ),
        ),
        (
            'primary = "docs"' + SMALLEST.replace("self", "web"),
            (
                "[sources] names no primary corpus, which is 'docs'; write "
                'docs = "path"'
            ),
        ),
        (
            'primary = "web"' + SMALLEST.replace("self", "web = 'b.rox', self"),
            (
                "[sources] has a source 'self', which would be the primary corpus, but "
                "primary is 'web'; rename the source, or leave primary out"
            ),
        ),
        (
            "primary = 3" + SMALLEST,
            "primary must be a non-empty string, got 3",
        ),
        (
            "primary = ''" + SMALLEST,
            "primary must be a non-empty string, got ''",
        ),
        (
            SMALLEST + "[eval]\nprimary = 'web'\nsources = { docs = 'b' }\nphases = []",
            "[eval] has no phases; write [[eval.phases]]",
        ),
        (
            SMALLEST
            + "[eval.a]\nprimary = 'web'\nsources = { docs = 'b' }\n"
            + "phases = [{ steps = 1, batch_size = 2, seq_len = 8 }]",
            "[eval.a.sources] names no primary corpus, which is 'web'",
        ),
        (
            SMALLEST.replace('"a.rox"', "7"),
            "sources.self must be a path, a pattern, a list of these, or a table with",
        ),
        (
            SMALLEST.replace("sources", "# sources")
            + "[sources]\nself = 'a'\nseed = 1",
            "if 'seed' is not one of sources, write it above the first [table]",
        ),
        (
            SMALLEST.replace('"a.rox"', '{ path = "a", polcy = 1 }'),
            "[sources.self] has no key 'polcy'; did you mean 'policy'?",
        ),
        (
            SMALLEST.replace('"a.rox"', '{ path = "a", policy = 1 }')
            + "[policies]\nself = 2",
            "source 'self' has a policy in [sources] and another in [policies]",
        ),
        (
            SMALLEST.replace("seq_len", "seqlen"),
            "phases.0 has no key 'seqlen'; did you mean 'seq_len'?",
        ),
        (
            SMALLEST.replace("steps = 1", "steps = 1.5"),
            f"phases.0.steps must be an integer of 1 or more{OFF}, got 1.5",
        ),
        (
            SMALLEST + "[eval]\nphases = []",
            "[eval] has no sources; write [eval.sour",
        ),
        (SMALLEST + "[eval]", "[eval] has no sources; write [eval.NAME]"),
        (
            SMALLEST + "[eval.web]\npath = 'b'\nsteps = 1\nbatch_size = 2",
            "[eval.web] has no seq_len; write seq_len = ...",
        ),
        (
            SMALLEST + "[eval.web]\npath = 'b'\nsequence = 1",
            "[eval.web] has no key 'sequence'",
        ),
        (
            SMALLEST + "[eval.web]\nsources = { self = 'b' }",
            "[eval.web] has no phases; write [[eval.web.phases]]",
        ),
        (
            SMALLEST + "[trainer]\nlog_every = 1\n[trainer]\neval_every = 1",
            "not TOML: Cannot declare ('trainer',) twice",
        ),
        (
            SMALLEST.replace("= 8", "= 8.0"),
            "phases.0.seq_len must be an integer of 1 or more, got",
        ),
        (SMALLEST.replace("= 8", "= -8"), "phases.0.seq_len must be an integer of 1"),
        (
            SMALLEST.replace("= 8", "= 8, weights = { self = 'x' }"),
            "phases.0.weights.self must be a finite number of 0 or more, got",
        ),
        (
            SMALLEST.replace("= 8", "= 8, weights = [1]"),
            f"phases.0.weights must be a table{OFF}, got [1]",
        ),
        ("seed = 2026-11-27" + SMALLEST, "seed must be an integer, got datetime.date("),
        (SMALLEST.replace('"a.rox"', "[]"), "sources.self must be a path, a pattern"),
        (SMALLEST + "[[trainer]]\nlog_every = 1", "trainer must be a table, got [{"),
        (
            SMALLEST + "[trainer.phases]\nsteps = 1",
            "[trainer] has no key 'phases'; write it above the first [table]",
        ),
        (
            SMALLEST + "[trainer]\nfields = ['tokens', 'position']",
            "got 'position'; did you mean 'positions'?",
        ),
        (
            SMALLEST + "[trainer]\ncheck = 'block'",
            "got 'block'; did you mean 'blocks'?",
        ),
        (
            SMALLEST + "[trainer.log_to.tensorbord]\nlog_dir = 'x'",
            "log_to names 'tensorbord', but the sinks are 'tensorboard', 'wandb'",
        ),
        (
            SMALLEST + "[trainer]\ninit_from = 'a'\nbranch_from = 'b'",
            "init_from and branch_from are both given",
        ),
        (
            SMALLEST.replace("sources", "# sources")
            + "[sources]\nself = 'a'\n'b b' = 'b'\nc = { path = 'c', offset = '1' }",
            f"sources.c.offset must be an integer{OFF}, got '1'",
        ),
        (
            SMALLEST.replace("sources", "# sources")
            + "[sources]\nself = 'a'\n'two words' = { path = '' }",
            "sources.'two words'.path must be a path, a pattern, or a list of paths",
        ),
        (
            SMALLEST + "[policies]\ncode = { epochs = 2, than = 'stop' }",
            "[policies.code] has no key 'than'; did you mean 'then'?",
        ),
        (
            SMALLEST + "[policies]\ncode = 'dorp'",
            'policies.code must be "drop", "repeat", "stop", a number',
        ),
        (
            SMALLEST + "[eval]\nsources = { self = 'b' }\nphases = [{ steps = 1 }]",
            "eval.phases.0 has no batch_size; write batch_size =",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_file_and_key(
    text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)

    message = str(caught.value)
    assert message.startswith(f"{Path('here/first.toml')}: ")
    assert sentence in message
    assert "\n" not in message


def test_a_folder_is_not_a_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; give a config file"):
        load_config(tmp_path)
    (tmp_path / "config.toml").write_text(SMALLEST)
    with pytest.raises(ConfigError, match=r"is a folder; give .*config\.toml"):
        load_config(tmp_path)


@pytest.mark.parametrize("read", [load_config, load_schedule])
def test_a_config_is_a_file_that_ends(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")

    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=f"^{path}: is a .*; give a"):
            read(path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_bytes(b"seed = \xff")

    with pytest.raises(ConfigError, match=r"first\.toml: is not text in UTF-8"):
        load_config(tmp_path / "first.toml")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG, encoding="utf-8-sig")

    assert load_config(file) == parse_config(CONFIG, file)


def test_paths_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_project(tmp_path / "project")
    monkeypatch.chdir(tmp_path)
    config = load_config(path.relative_to(tmp_path))

    assert open_curriculum(config).total_steps == 6
    held_out = open_eval_curriculum(config)
    assert isinstance(held_out, Curriculum)
    assert held_out.total_steps == 1


def test_a_cache_is_only_for_corpora_in_buckets(tmp_path: Path) -> None:
    text = "cache = 'copies'\ncache_bytes = '2G'\n" + CONFIG
    config = load_config(write_project(tmp_path, text))

    assert config.cache_bytes == 2 << 30
    assert open_curriculum(config).total_steps == 6
    assert not (tmp_path / "copies").exists()


def test_a_list_of_paths_is_one_corpus(tmp_path: Path) -> None:
    text = CONFIG.replace('"web_*.rox"', '["web_*.rox", "held_out.rox"]')
    config = load_config(write_project(tmp_path, text))

    plan = open_curriculum(config).plan()

    assert plan.sources[0].num_tokens == 10 * 40


def test_a_schedule_that_cannot_be_met_names_file_and_reason(tmp_path: Path) -> None:
    text = CONFIG.replace("seq_len = 16", "seq_len = 4000")
    config = load_config(write_project(tmp_path, text))

    with pytest.raises(ConfigError, match=r"first\.toml: phase 1 has seq_len=4000"):
        open_curriculum(config)


def test_held_out_sources_without_weights_name_the_table_for_each(
    tmp_path: Path,
) -> None:
    text = CONFIG.partition("[eval]")[0] + (
        "[eval]\nsources = { self = 'held_out.rox', code = 'web_*.rox' }\n"
        "phases = [{ steps = 1, batch_size = 1, seq_len = 8 }]\n"
    )
    config = load_config(write_project(tmp_path, text))

    with pytest.raises(ConfigError, match=r"a table for each, as \[eval\.self\]"):
        open_eval_curriculum(config)


def test_an_evaluation_that_cannot_be_met_says_so(tmp_path: Path) -> None:
    text = CONFIG.replace(
        "batch_size = 2, seq_len = 8 }]", "batch_size = 2, seq_len = 999 }]"
    )
    config = load_config(write_project(tmp_path, text))

    with pytest.raises(ConfigError, match=r"first\.toml: \[eval\]: phase 0"):
        open_eval_curriculum(config)


def test_named_held_out_sets_have_their_own_corpora_and_phases(tmp_path: Path) -> None:
    text = CONFIG.partition("[eval]")[0] + (
        "[eval.web]\npath = 'held_out.rox'\nsteps = 2\nbatch_size = 1\nseq_len = 8\n"
        "[eval.'the code']\nsources = { self = 'web_*.rox' }\n"
        "phases = [{ steps = 3, batch_size = 2, seq_len = 8 }]\n"
    )
    config = load_config(write_project(tmp_path, text))

    opened = open_eval_curriculum(config)

    assert isinstance(opened, dict)
    steps = {name: curriculum.total_steps for name, curriculum in opened.items()}
    assert steps == {"web": 2, "the code": 3}


def test_a_config_may_name_its_primary_source(tmp_path: Path) -> None:
    named = CONFIG.replace("self =", "web =").replace("seed = 3", 'primary = "web"')
    text = named.replace("[eval]", "[policies]\nweb = 'stop'\n[eval]")
    config = load_config(write_project(tmp_path, text))

    curriculum = open_curriculum(config)
    assert curriculum.source_names == ("web", "code")
    assert [source.policy for source in curriculum.plan().sources] == [
        "stop",
        "repeat 2",
    ]
    # A held-out set has the primary of the training data, unless it has `self`.
    held_out = open_eval_curriculum(config)
    assert isinstance(held_out, Curriculum)
    assert held_out.source_names == ("web",)
    assert parse_config(config_text(config), config.file) == config
    own = 'sources = { self = "held_out.rox", web = "web_*.rox" }'
    own_eval = text.replace('sources = { web = "held_out.rox" }', own)
    head, eval_table = own_eval.split("[eval]")
    eval_table = eval_table.replace(" }]", ", weights = { self = 1, web = 1 } }]")
    config = load_config(write_project(tmp_path, f"{head}[eval]{eval_table}"))
    held_out = open_eval_curriculum(config)
    assert isinstance(held_out, Curriculum)
    assert held_out.source_names == ("self", "web")


def test_phases_of_a_model_have_the_name_of_the_primary(tmp_path: Path) -> None:
    text = CONFIG.replace("self =", "web =").replace("seed = 3", 'primary = "web"')
    text = text.replace('"tiny:make"', '"phased:make"').replace("width = 2", "")
    path = write_project(tmp_path, text)
    (tmp_path / "phased.py").write_text(
        "def make(phases):\n    return [dict(each.weights) for each in phases], 1, 1\n"
    )

    assert make_model(load_config(path)) == [{"web": 1, "code": 1}, {"web": 1}]


def test_a_kept_config_means_what_the_original_means(tmp_path: Path) -> None:
    path = write_project(tmp_path / "project")
    config, run = load_config(path), tmp_path / "elsewhere" / "run"

    text = declaration_of(config, run).text

    assert "# A run to learn from." in text
    again = parse_config(text, run / "config.toml")
    assert again.folder.resolve() == config.folder.resolve()
    assert replace(again, file=path, relative_to=".") == config
    assert open_curriculum(again).total_steps == 6


def test_a_copy_of_a_copy_means_the_same(tmp_path: Path) -> None:
    path = write_project(tmp_path / "project")
    keep(load_config(path), tmp_path / "a")
    keep(load_config(tmp_path / "a" / "config.toml"), tmp_path / "b" / "c")

    again = load_config(tmp_path / "b" / "c" / "config.toml")

    assert again.folder.resolve() == path.parent.resolve()
    assert again.path("x").parent.resolve() == path.parent.resolve()


def test_the_text_of_a_run_in_a_bucket_names_its_base_folder(tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    path.write_text('save_path = "s3://data/run"\n' + SMALLEST)
    config = load_config(path)

    text = declaration_of(config, tmp_path / "cache").text

    again = parse_config(text, tmp_path / "another cache" / "config.toml")
    assert again.folder == config.folder
    # A user may move this file, with the corpora beside it, to another machine.
    assert "relative_to" not in changed_text(config, tmp_path)


def test_a_text_that_looks_like_a_key_is_kept_too(tmp_path: Path) -> None:
    text = (
        '''model = "tiny:make"
model_args.note = """
relative_to = nothing
"""
'''
        + SMALLEST
    )
    path = tmp_path / "first.toml"
    path.write_text(text)
    config = load_config(path)

    text = declaration_of(config, tmp_path / "run").text

    again = parse_config(text, tmp_path / "run" / "config.toml")
    assert again.model_args == {"note": "relative_to = nothing\n"}


def test_a_run_that_python_starts_keeps_its_config(tmp_path: Path) -> None:
    path, run = write_project(tmp_path), tmp_path / "run"

    make_trainer(load_config(path)).run()
    path.write_text(CONFIG.replace("steps = 2", "steps = 3"))
    make_trainer(load_config(path)).run()
    make_trainer(load_config(path, ["trainer.log_every=5"])).run()  # trains nothing

    config = open_run(run).config
    assert config is not None
    assert config == replace(load_config(path), file=config.file, relative_to="..")
    assert kept_configs(run) == [0, 6]
    assert "steps = 3" not in (RunFolder(run).config_text(6) or "")
    assert load_config(run / "config.toml") == config


def test_a_config_in_the_run_s_folder_stays_as_it_is(tmp_path: Path) -> None:
    text = CONFIG.replace('save_path = "run"', 'save_path = "."')
    path = write_project(tmp_path, text).rename(tmp_path / "config.toml")

    make_trainer(load_config(path, ["trainer.log_every=2"])).run()

    assert path.read_text() == text
    kept = open_run(tmp_path).config
    assert kept is not None
    assert kept.folder.resolve() == tmp_path.resolve()
    assert kept.trainer.log_every == 2


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('model = "tiny:make"\n', "", 'needs; write model = "module:function"'),
        ('save_path = "run"\n', "", 'training needs; write save_path = "runs/first"'),
        ("tiny:make", "tinny:make", "model names the module 'tinny', which is neither"),
        (
            "tiny:make",
            "tiny.x:make",
            "model names the module 'tiny.x', which is neither",
        ),
        ("tiny:make", "tiny:mak", "tiny.py has no function 'mak', which model names"),
        ("tiny:make", "tiny:optax", "tiny.py has no function 'optax'"),
        (
            "width = 2",
            "widht = 2",
            (
                "[model_args] has the key 'widht', which tiny:make does not accept; "
                "did you mean 'width'?"
            ),
        ),
        (
            "tiny:make",
            "tiny:needs_depth",
            (
                "[model_args] lacks depth, which tiny:needs_depth needs; "
                "write a value under [model_args]"
            ),
        ),
        (
            "tiny:make",
            "tiny:two_things",
            (
                "[model_args] has the key 'width', which tiny:two_things does not "
                "accept; the function accepts none"
            ),
        ),
        ("[model_args]\nwidth = 2\n", "[model_args]\n", ""),
        ("hang_after_s = 600", "hang_after_s = false", ""),
        ("hang_after_s = 600", "grad_accum_steps = 2", "does not divide by grad_accum"),
        (
            "[eval]",
            "[mesh]\naxes = { data = 3 }\n\n[eval]",
            "devices do not fill a mesh",
        ),
    ],
)
def test_what_cannot_be_built_is_one_sentence_with_the_file(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    config = load_config(write_project(tmp_path, CONFIG.replace(old, new)))
    before = list(sys.path)

    if not sentence:
        make_trainer(config)
    else:
        with pytest.raises(ConfigError) as caught:
            make_trainer(config)
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / 'first.toml'}: ")
        assert sentence in message
    assert sys.path == before
    assert not (tmp_path / "run").exists()


def test_model_args_may_be_any_that_a_function_takes(tmp_path: Path) -> None:
    path = write_project(tmp_path, CONFIG.replace("tiny:make", "tiny:takes_all"))

    assert make_trainer(load_config(path)).model.features == 2  # pyright: ignore[reportAttributeAccessIssue] - it is an nnx.Embed


def test_a_function_that_returns_two_things_is_named(tmp_path: Path) -> None:
    text = CONFIG.replace("tiny:make", "tiny:two_things").replace("width = 2", "")
    config = load_config(write_project(tmp_path, text))

    with pytest.raises(ConfigError, match=r"two_things returned a tuple; it must"):
        make_trainer(config)


def test_an_error_of_the_model_s_own_code_passes(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    (tmp_path / "tiny.py").write_text("def make(width):\n    return int('x')\n")

    with pytest.raises(ValueError, match="invalid literal") as caught:
        make_trainer(load_config(path))
    assert type(caught.value) is ValueError


def test_two_configs_may_call_their_modules_alike(tmp_path: Path) -> None:
    first = write_project(tmp_path / "a")
    second = write_project(tmp_path / "b")
    other = (
        (tmp_path / "b" / "tiny.py").read_text().replace("ary, width", "ary, width + 5")
    )
    (tmp_path / "b" / "tiny.py").write_text(other)

    widths = [make_trainer(load_config(path)).model for path in (first, second)]

    assert [model.features for model in widths] == [2, 7]  # pyright: ignore[reportAttributeAccessIssue] - it is an nnx.Embed


@pytest.mark.parametrize(
    "mesh",
    [
        'preset = "fsdp"',
        "axes = { data = -1, model = 1 }",
        'preset = "data-parallel"',
        'preset = "hybrid"\ngroups = 1',
    ],
)
def test_a_mesh_is_made_by_its_preset(tmp_path: Path, mesh: str) -> None:
    text = CONFIG + f"\n[mesh]\n{mesh}\n"

    trainer = make_trainer(load_config(write_project(tmp_path, text)))

    assert trainer.plan().total_steps == 6


def refused(make: Callable[[], object]) -> str:
    """Return the sentence that refuses a setting, or nothing."""
    try:
        make()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def judged_by_both(name: str, value: Any) -> tuple[str, str]:
    """Return what Python and a config file say of a setting."""
    text = tomlkit.dumps({"trainer": {name: value}})
    # A file has tables after other values, and so it is what Python gets.
    settings = tomlkit.parse(text).unwrap()["trainer"]
    from_python = refused(lambda: Settings(**settings))
    from_file = refused(lambda: parse(SMALLEST + text))
    head = "here/first.toml: "
    told = from_file.removeprefix(head)
    return from_python, re.sub(r"^trainer(\.|: )", "", told)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "eval_every",
            0,
            f"must be an integer of 1 or more{OFF}, got 0",
        ),
        ("log_every", -1, "must be an integer of 1 or more, got -1"),
        ("log_every", False, "must be an integer of 1 or more, got False"),
        ("log_every", 2.5, "must be an integer of 1 or more, got 2.5"),
        ("checkpoint_every", 0, 'must be a number of steps of 1 or more, or "contin'),
        ("checkpoint_every", "continous", 'steps of 1 or more, or "continuous"'),
        (
            "max_to_keep",
            0,
            f"must be an integer of 1 or more{OFF}, got 0",
        ),
        (
            "max_to_keep",
            True,
            f"must be an integer of 1 or more{OFF}, got True",
        ),
        (
            "keep_every",
            "6",
            f"or a duration such as \"6h\"{OFF}, got '6'",
        ),
        ("keep_every", 1.5, "must be a number of steps of 1 or more, or a duration"),
        ("timeout", 0, "must be a finite number above 0, got 0"),
        ("timeout", "long", "must be a finite number above 0, got 'long'"),
        (
            "hang_after_s",
            math.inf,
            f"must be a finite number above 0{OFF}, got inf",
        ),
        (
            "hang_after_s",
            math.nan,
            f"must be a finite number above 0{OFF}, got nan",
        ),
        (
            "flops_per_token",
            10**400,
            f"must be a finite number above 0{OFF}, got 1",
        ),
        ("grad_accum_steps", True, "must be an integer of 1 or more, got True"),
        ("strict_sharding", "no", "must be true or false, got 'no'"),
        ("strict_sharding", 1, "must be true or false, got 1"),
        ("best_metric", 3, f"must be a non-empty string{OFF}, got 3"),
        (
            "best_metric",
            "",
            f"must be a non-empty string{OFF}, got ''",
        ),
        ("fields", "tokens", "must be a list, each entry"),
        ("fields", ["tokens", "position"], "fields.1 must be"),
        ("profile", [1, 2, 3], "must be two rising steps [start, stop] or None"),
        ("check", "block", 'must be "blocks" or "headers", got \'block\'; did you'),
        ("model_sharding", "x", 'must be "annotated" or "fsdp" or a list'),
        ("init_from", 7, f"must be a non-empty string{OFF}, got 7"),
        ("skip_spikes", 3, f"must be a table{OFF}, got 3"),
    ],
)
def test_python_and_a_file_refuse_a_setting_in_the_same_words(
    name: str, value: Any, said: str
) -> None:
    from_python, from_file = judged_by_both(name, value)

    assert said in from_python
    assert from_python == from_file


@given(st.sampled_from([each.name for each in fields(Settings)]), values)
def test_python_and_a_file_judge_settings_in_the_same_words(
    name: str, value: Any
) -> None:
    from_python, from_file = judged_by_both(name, value)

    assert from_python == from_file


def test_false_turns_a_setting_off_in_python_as_in_a_file() -> None:
    from_python = Settings(eval_every=False, max_to_keep=False)
    in_file = {"trainer": {"eval_every": False, "max_to_keep": False}}
    from_file = parse(SMALLEST + tomlkit.dumps(in_file)).trainer

    assert (from_python.eval_every, from_python.max_to_keep) == (None, None)
    assert (from_file.eval_every, from_file.max_to_keep) == (None, None)


PHASE: dict[str, Any] = {
    "steps": 1,
    "batch_size": 2,
    "seq_len": 8,
    "weights": {"self": 1},
}
DECLARED: dict[str, Callable[[dict[str, Any]], object]] = {
    "phases": lambda table: Schedule((Phase(**{**PHASE, **table}),)),
    "schedule": lambda table: Schedule((Phase(**PHASE),), **table),
    "mesh": lambda table: MeshConfig(**table),
}
"""What makes each table in Python; the primary is also judged by the sources."""
KEYS = [
    *(("phases", each.name) for each in fields(Phase)),
    *(("schedule", each.name) for each in fields(Schedule)[1:]),
    *(("mesh", each.name) for each in fields(MeshConfig)),
]


@given(st.sampled_from(KEYS), values)
def test_python_and_a_file_judge_what_is_declared_in_the_same_words(
    key: tuple[str, str], value: Any
) -> None:
    where, name = key
    assume(name not in {"_", "primary"})
    # A file has tables after other values, and so it is what Python gets.
    in_file = tomlkit.parse(tomlkit.dumps({name: value})).unwrap()
    tables = {
        "phases": {"phases": [{**PHASE, **in_file}]},
        "schedule": {"phases": [PHASE], **in_file},
        "mesh": {"phases": [PHASE], "mesh": in_file},
    }
    text = tomlkit.dumps({"sources": {"self": "a.rox"}, **tables[where]})

    from_python = refused(lambda: DECLARED[where](in_file))
    told = refused(lambda: parse(text)).removeprefix("here/first.toml: ")
    from_file = re.sub(r"^(phases\.0|mesh)(\.|: )", "", told)

    assert from_python == from_file


def test_false_in_a_file_turns_a_setting_off() -> None:
    config = parse(
        f"{SMALLEST}[trainer]\nmax_to_keep = false\nhang_after_s = false\n"
        "strict_sharding = false\n"
    )

    assert config.trainer == TrainerConfig(max_to_keep=None, hang_after_s=None)
    assert parse_config(config_text(config), config.file) == config


@pytest.mark.parametrize("name", [each.name for each in fields(TrainConfig)])
def test_a_setting_of_the_trainer_is_a_key_or_has_a_remedy(name: str) -> None:
    # A table is the right type of `log_to` and `skip_spikes`, which refuse its key.
    with pytest.raises(ConfigError) as caught:
        parse(f"{SMALLEST}[trainer]\n{name} = {{ none = {{}} }}")

    message = str(caught.value)
    is_key = (
        re.search(rf"trainer\.{name}(\.none)? must be ", message)
        or "log_to names 'none'" in message
    )
    assert is_key or re.search("has no key .*; (write|the function of)", message)


def test_functions_and_sinks_of_the_trainer_have_names(tmp_path: Path) -> None:
    text = CONFIG.replace(
        "[trainer]",
        "[trainer]\n"
        'log_to = { tensorboard = { log_dir = "tables" } }\neval_fn = "tiny:score"\n'
        'timeout = 60\nflops_per_token = 5.0\nmodel_sharding = "fsdp"\n',
    )
    config = load_config(write_project(tmp_path, text))
    model = tmp_path / "tiny.py"
    model.write_text(f"{model.read_text()}\n\ndef score(state):\n    return 2.5\n")

    make_trainer(config).run()

    assert len([*(tmp_path / "tables").iterdir()]) == 1
    evaluation = RunFolder(str(config.run_folder)).newest_rows["eval"]
    assert evaluation["value"] == 2.5
    assert parse_config(config_text(config), config.file) == config


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            'log_to = ["tb"]',
            "log_to names 'tb', but the sinks are 'tensorboard', 'wandb'",
        ),
        ("log_to = [[1]]", "trainer.log_to.0 must be a non-empty string, got [1]"),
        ("wandb = {}", "[trainer] has no key 'wandb'"),
        ("skip_spikes = { windw = 9 }", "[skip_spikes] has no key 'windw'; "),
        ('model_sharding = "x"', 'must be "annotated" or "fsdp" or a list, each entry'),
        ('eval_fn = "x"', f'trainer.eval_fn must be "module:function"{OFF}'),
    ],
)
def test_a_wrong_option_of_the_trainer_is_named(lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"{SMALLEST}[trainer]\n{lines}")
    assert message in str(caught.value)
