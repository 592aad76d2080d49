"""The training loop, which combines data, updates, log and checkpoints.

In a metrics row, an evaluation or a checkpoint, "step k" means that k updates are done.
The next update reads batch k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flax import nnx
from roxxel_store.arguments import as_integer

from roxxel_train._files.own_folder import OwnFolder
from roxxel_train._log.logger import Logger
from roxxel_train._run.evaluation import Evaluator
from roxxel_train._run.preflight import Preflight, preflight
from roxxel_train._run.session import Session
from roxxel_train._run.state import RunState
from roxxel_train._step.compiled import (
    CompiledAhead,
    check_weight,
    use_compilation_cache,
)
from roxxel_train._step.given import check_pair, evaluation_mode, untrained_array
from roxxel_train._step.model_sharding import ModelLayout, on_mesh
from roxxel_train._step.placement import (
    BatchPlacement,
    accumulation_notes,
    batch_sharding,
    fed_shapes,
    instead_of_set_mesh,
)
from roxxel_train._step.step import choose_step, jit_update
from roxxel_train._together.barriers import check_same
from roxxel_train._together.watcher import needs_all_processes
from roxxel_train.config import TrainConfig, configured_by

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_ckpt import Checkpointer
    from roxxel_curriculum import Plan, Sampler

    from roxxel_train._run.events import RunSummary
    from roxxel_train._step.step import ModelState
    from roxxel_train.config import Declaration


class Trainer:
    """Trains a model over a curriculum, and resumes a run that was stopped.

    The constructor traces the update for every batch shape, so a wrong loss function or
    a vocabulary that is too small for the data fails before the run has a folder. If
    the folder holds a run, the constructor also checks that the curriculum agrees with
    the data that this run has read.

    `roxxel_train.config.TrainConfig` documents the arguments.

    Attributes:
        model: The model on the mesh, with its newest values after `run()`.
        optimizer: The optimizer on the mesh, with its newest values after `run()`.
        curriculum: The data, the blend and the batch shape of every step.
        seed: Seed of the data order.

    Raises:
        ValueError: An argument is out of range, a batch does not divide by
            `grad_accum_steps` or (with `strict_sharding`) over the mesh, or the model
            has no row for some token of the data.
        TypeError: An argument has a wrong type, or `loss_fn` does not return a loss.
        ClusterError: A launcher has started several processes, and this one is not
            connected to the others.
        RunMismatchError: The folder holds a run of another model or of other data.
        roxxel_ckpt.CheckpointMismatchError: The newest checkpoint of the run does not
            fit the model and the optimizer.
        OSError: The folder cannot be written.

    Example:
        >>> import optax
        >>> from flax import nnx
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_format import Roxxel
        >>> corpus = Roxxel("tokens.rox")
        >>> corpus.write([np.arange(64)], vocab_size=64).num_tokens
        64
        >>> def loss_fn(model, batch):
        ...     return ((model(batch[:, :-1]) - model(batch[:, 1:])) ** 2).mean()
        >>> model = nnx.Embed(64, 4, rngs=nnx.Rngs(0))
        >>> optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        >>> curriculum = Curriculum(corpus, [Phase(2, batch_size=1, seq_len=8)])
        >>> Trainer(model, optimizer, curriculum, loss_fn).run().complete
        True
    """

    model: nnx.Module
    optimizer: nnx.Optimizer[Any]

    @needs_all_processes
    @configured_by(TrainConfig)
    def __init__(self, model: Any, **settings: Any) -> None:
        # Editors that follow no decorator (jedi) list what `TrainConfig` takes here.
        config = TrainConfig(model=model, **settings)
        if config.curriculum is None:
            raise TypeError("curriculum is missing; give a Curriculum")
        self.curriculum = config.curriculum
        uncached = use_compilation_cache()
        step = choose_step(config.loss_fn, config.train_step, config.grad_accum_steps)

        # The folder, the log, and the arrays on the mesh.
        path = config.save_path
        # A wrong URL should fail soon, however long a save may take.
        timeout_s = min(config.timeout, 180.0)
        folder = None if path is None else OwnFolder(path, timeout_s)
        log_dir = None if folder is None else folder.path
        sinks = [] if log_dir is None else config.make_sinks(log_dir)
        log = config.logger or Logger(log_dir, sinks)
        sharding = batch_sharding(config.mesh, config.data_sharding)
        placement = BatchPlacement(sharding, strict=config.strict_sharding)
        layout = ModelLayout.of(config.model_sharding, sharding)
        config.check_platform(layout.mesh.devices.flat[0].platform)

        def compare(arrays: str) -> None:
            # If a setting differs between processes, the first computation crashes.
            mesh = [str(sharding.spec), str(sharding.mesh.shape)]
            writes = (config.save_path or config.checkpointer) is not None
            settings = {
                "model or optimizer": arrays,
                "sharding": [*mesh, config.model_sharding],
                "save_path or checkpointer": writes,
                "init_from": config.init_from is not None,
                "branch_from": config.branch_from is not None,
            }
            check_same("construction of the trainer", settings, config.timeout)

        with instead_of_set_mesh(layout.mesh):
            self.model, self.optimizer = on_mesh(
                config.model, config.optimizer, layout, compare
            )
            if config.train_step is None:
                check_pair(self.model, self.optimizer)

        # The state to start from: a checkpoint of this run, or of another run.
        state = RunState(
            config, self.curriculum, self.model, self.optimizer, folder, layout.mesh
        )
        sampler = state.sampler
        self.seed = sampler.seed
        traced = config.traced_steps(sampler.total_steps)
        idle = accumulation_notes(sampler.phases, config.grad_accum_steps, placement)
        batches = fed_shapes(sampler, placement, config.grad_accum_steps)
        state.load_origin()

        # Tracing the programs for every phase makes a wrong loss_fn fail here.
        graphdef = nnx.graphdef((self.model, self.optimizer))
        updates = CompiledAhead(
            jit_update(
                graphdef, step, state.arrays, sampler.source_names, state.window.rule
            ),
            state.arrays,
            batches,
            layout.mesh,
            state.path,
        )
        warnings = [
            *evaluation_mode(self.model),
            *untrained_array(self.model, self.optimizer.wrt),
            *updates.found.check(sampler),
        ]
        if config.grad_accum_steps > 1:
            check_weight(
                updates, f"grad_accum_steps={config.grad_accum_steps} averages parts"
            )
        evaluator = Evaluator(
            config, state.held_out, placement, graphdef, state.arrays, state.path
        )
        warnings += evaluator.check_best_metric(
            state.best_metric, updates.names, is_recorded=config.best_metric is None
        )
        shapes = [(phase.batch_size, phase.seq_len) for phase in sampler.phases]
        self._session = Session(
            config=config,
            log=log,
            mesh=layout.mesh,
            placement=placement,
            state=state,
            updates=updates,
            shapes=batches,
            evaluator=evaluator,
            notes=[
                *uncached,
                *placement.notes(shapes, config.grad_accum_steps, updates.found.whole),
                *idle,
            ],
            warnings=warnings,
            traced=traced,
        )

    @property
    def state(self) -> ModelState:
        """Model, optimizer and number of updates: the argument of `eval_fn`.

        Outside of `run()` the arrays have the newest values. During `run()` they have
        the values of the last evaluation or save, and the next update donates them.
        """
        return self._session.state.objects

    @property
    def checkpointer(self) -> Checkpointer | None:
        """The checkpoints of this run; None without `save_path` and `checkpointer`."""
        return self._session.state.checkpointer

    @property
    def folder(self) -> Path | None:
        """Local folder with the files of the run; None if the run writes no files."""
        return self._session.state.path

    @property
    def declaration(self) -> Declaration | None:
        """The config file that declares the run, if a program has set it."""
        return self._session.declaration

    @declaration.setter
    def declaration(self, declaration: Declaration | None) -> None:
        self._session.declaration = declaration

    @property
    def logger(self) -> Logger:
        """The log of this run, which is open during `run()`."""
        return self._session.log

    @property
    def sampler(self) -> Sampler:
        """The sampler of this run, with the batches of past and future steps.

        For a past step, `sampler.batch(step)` returns the batch that the run has read,
        and `sampler.locate(step, row)` returns the location of a row in this batch.
        Both hold even if the curriculum was edited after this step.
        """
        return self._session.state.sampler

    def plan(self) -> Plan:
        """Return how much every phase reads from every source; reads no tokens.

        For trained steps, the plan shows the data that the run has read.
        """
        return self.sampler.plan()

    def preflight(self) -> Preflight:
        """Compile for every phase; return time, memory, disk space and problems.

        This also trains a few steps of every batch shape and undoes them, reads
        held-out batches, and tries the sinks that send rows away. If it finds a
        problem, no step is timed. The run stays as it is: model and optimizer keep
        their values, and nothing is saved or logged.
        """
        return preflight(self._session)

    def save(self) -> None:
        """Request a checkpoint of the current run; any thread may call this method.

        The run saves after the current step, as on SIGUSR1. With several processes, a
        request in one process is enough: all save at the same step, a few steps later.

        Raises:
            RuntimeError: `run()` is not running, or the trainer has no checkpointer.
        """
        if self._session.state.checkpointer is None:
            raise RuntimeError("this trainer has no folder to save to; give save_path")
        if not self._session.is_open:
            raise RuntimeError(
                "run() is not running, so it cannot save a checkpoint; "
                "call save() while run() is running"
            )
        self._session.processes.request_save()

    def stop(self, reason: str = "requested by the program") -> bool:
        """Request that the current run saves and ends; `run()` then returns.

        Any thread, callback or signal handler may call this method. The run finishes
        its step, saves, and returns a summary with `stop_reason`. With several
        processes, a request in one of them is enough: all stop after the same step, a
        few steps later, and all return.

        Args:
            reason: Why the run ends, for the log and the summary.

        Returns:
            Whether a run was in progress. Otherwise nothing happens.
        """
        is_open = self._session.is_open
        if is_open:
            self._session.processes.request_end(reason)
        return is_open

    def run(self, until: int | None = None) -> RunSummary:
        """Train from the newest sound checkpoint to the end of the curriculum.

        Args:
            until: Save after this step and return; the next call continues from there.
                The rest of the curriculum stays planned, and schedules keep following
                its whole length. None for the whole run.

        Returns:
            A summary of this call, which makes no update if the run is complete. After
            `stop`, or at `until`, its `stop_reason` says why the run ended.

        Raises:
            Preempted: SIGTERM, SIGINT, SIGHUP, SIGUSR2 or SIGXCPU stopped the run, and
                the state is saved. This exception is a `SystemExit` with code 75. A
                signal that the program ignores (`nohup`) or handles does not stop the
                run. Nor does a signal stop a run outside of the main thread, where
                Python handles no signals: then call `stop` from the program's own
                handler.
            NonFiniteError: A loss or a parameter became NaN or infinite.
            SilentCorruptionError: With `verify_every`, an update that was made twice
                gave different bits.
            LogWriteError: A line of the log could not be written; the state is saved.
            RunMismatchError: Another process trains in the folder, or an earlier error
                has destroyed the values of the model.
            ValueError: A setting differs between processes.
            roxxel_ckpt.CheckpointError: A checkpoint cannot be written or read.
            Exception: An error of `loss_fn`, `eval_fn` or the data. A single process
                saves the state, if intact and finite, before it raises the error.

        With several processes, all of them raise `Preempted`, `NonFiniteError`,
        `SilentCorruptionError`, `LogWriteError` and the `ValueError` above. After any
        other error in one process, all processes log the cause and exit with code 1,
        and `run` does not return.
        """
        if until is not None:
            until = as_integer("until", until, 0)
        with self._session.opened(until):
            self._train()
            return self._session.finish()

    def _train(self) -> None:
        """Make the remaining updates, with their evaluations and checkpoints."""
        session, state = self._session, self._session.state
        if session.begin_run():
            return
        for phase, shape in zip(self.sampler.phases, session.shapes, strict=True):
            if phase.stop <= state.step:
                continue
            if state.step == phase.start:
                state.window.begin_phase(state.arrays)
            update = session.update_of(shape)
            if update is None:
                return
            for step in range(state.step + 1, phase.stop + 1):
                batch = next(session.batches)
                session.trace.at(step - 1, session.recorder.drain)
                session.processes.before(step)
                state.arrays, scalars, tally = update(state.arrays, batch)
                state.step = step
                session.recorder.push(step, scalars, tally)
                session.garbage.collect_at(step, session.recorder.collected)
                if session.is_due(session.config.eval_every):
                    session.evaluate()
                if session.act():
                    return
