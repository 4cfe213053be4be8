"""What the roles of a job write down: starts, steps, updates of tables; and how they are killed.

All is in the folder of the job: `starts/worker-1.2` is the second start of a worker, with its
process id; `steps/ps-0.1` has a JSON line for each thing that the first start of server 0 did;
`tables` and `dense` have the updates, which a server writes at its end. Lines are in the file
before the call that they are about is answered.
"""

import json
import os
import pickle
import signal
import threading
from pathlib import Path

from monolith.checkpoint import Chain, Contents
from monolith.cluster.job import job_workers
from monolith.cluster.job.dense_shard import DenseShard
from monolith.cluster.job.job_host import JobHost
from monolith.cluster.server_host import ServerHost
from monolith.table import Table
from tests.cluster.server_records import record_tables

MOMENTS = ("before", "held", "cut", "after")
"""When a chief kills: before a save, while all hold, when all go on, when the save is named."""

STRIKES = "strikes.json"
SILENT = "silent"
"""Name of the file with the seconds after which servers call a worker silent."""


def record_role(folder, arguments):
    """Record the role that this process is about to run."""
    kind = arguments[0]
    if kind not in ("ps", "worker"):
        return
    folder, index = Path(folder), int(arguments[arguments.index("--index") + 1])
    name, number = f"{kind}-{index}", 1
    for part in ("starts", "steps", "tables", "began"):
        (folder / part).mkdir(exist_ok=True)
    while (folder / "starts" / f"{name}.{number}").exists():
        number += 1
    path = folder / "starts" / f"{name}.{number}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    if (folder / SILENT).exists():
        job_workers.SILENT_SECONDS = float((folder / SILENT).read_text())
    if kind == "ps":
        _record_server(folder, folder / "steps" / f"{name}.{number}")
    elif index == 0 and (folder / STRIKES).exists():
        _strike_at_saves(folder)


def this_role(folder):
    """Return the name and the number of the start of the role that this process is."""
    for path in Path(folder, "starts").glob("*.*[0-9]"):
        if path.read_text() == str(os.getpid()):
            return path.name
    return "none"


def pid_of(folder, name):
    """Return the process id of the newest start of a role."""
    starts = Path(folder, "starts").glob(f"{name}.*[0-9]")
    newest = max(starts, key=lambda path: int(path.suffix[1:]))
    return int(newest.read_text())


# Servers


def _record_server(folder, path):
    lock = threading.Lock()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**facts):
        with lock:
            os.write(file, json.dumps(facts).encode() + b"\n")

    step_job, import_job, export_job = (
        JobHost._do_step_job,
        JobHost._do_import_job,
        JobHost._do_export_job,
    )

    def noted_step(host, worker, start, number, gradients, options, progress, wants_values):
        answer = step_job(host, worker, start, number, gradients, options, progress, wants_values)
        facts = {"worker": worker, "start": start, "number": number}
        note(event="step", **facts, progress=json.loads(progress or "[]"))
        return answer

    def noted_import(host, state, with_workers):
        import_job(host, state, with_workers)
        note(event="import", numbers=json.loads(state)["numbers"])

    def noted_export(host):
        state = export_job(host)
        note(event="export", numbers=json.loads(state)["numbers"])
        return state

    JobHost._do_step_job = noted_step
    JobHost._do_import_job, JobHost._do_export_job = noted_import, noted_export
    if (folder / "record").exists():
        record_tables(folder / "tables")
        _note_cuts(note)
        _record_dense(folder / f"dense-{path.name}")


def _note_cuts(note):
    """Note how many changes of a table are before each of its cuts."""
    open_cut = Table._open_cut

    def noted(table, cursor):
        cut = open_cut(table, cursor)
        if cut is not None:
            note(event="cut", table=table.config.name, num_recorded=cut.num_recorded)
        return cut

    Table._open_cut = noted


def _record_dense(path):
    """Write all that changes the dense parameters of a server, in order, at the server's end."""
    events, close = [], ServerHost.close
    step, load, export = DenseShard.step, DenseShard.load, DenseShard.export
    lock = threading.Lock()

    def noted_step(shard, gradients, options):
        with lock:
            events.append(("step", [(n, g.clone()) for n, g in gradients], options))
            return step(shard, gradients, options)

    def noted_load(shard, state):
        with lock:
            load(shard, state)
            events.append(("load", export(shard)))

    def noted_export(shard):
        with lock:
            state = export(shard)
            events.append(("export", state.version))
            return state

    def write_and_close(server):
        if events:
            path.write_bytes(pickle.dumps(events))
            events.clear()
        close(server)

    DenseShard.step, DenseShard.load, DenseShard.export = noted_step, noted_load, noted_export
    ServerHost.close = write_and_close


# Kills


def strikes_of(folder):
    """Return the kills that the chief of a job makes, and how many it has made."""
    path = Path(folder, STRIKES)
    strikes = json.loads(path.read_text()) if path.exists() else []
    return strikes, sum(Path(folder, f"struck-{i}").exists() for i in range(len(strikes)))


def _strike_at_saves(folder):
    """Kill roles at moments of saves, as the file in the folder of the job says; each once."""
    num_begun = 0  # of the saves since the last kill, or the start of this process

    def reach(moment):
        nonlocal num_begun
        strikes, number = strikes_of(folder)
        if number == len(strikes):
            return
        strike = strikes[number]
        if moment == strike["moment"] and num_begun == strike["save"]:
            num_begun = 0
            (folder / f"struck-{number}").touch()
            os.kill(pid_of(folder, strike["target"]), signal.SIGKILL)

    from monolith.train.saves.checkpoint_hook import CheckpointHook

    begin, cut, save = CheckpointHook._begin, Contents.cut, Chain.save

    def struck_begin(hook, *arguments, **options):
        nonlocal num_begun
        num_begun += 1
        reach("before")
        return begin(hook, *arguments, **options)

    def struck_cut(contents, *arguments, **options):
        if contents.tables:
            reach("held")
        return cut(contents, *arguments, **options)

    def struck_save(chain, *arguments, **options):
        reach("cut")
        saved = save(chain, *arguments, **options)
        reach("after")
        return saved

    CheckpointHook._begin, Contents.cut, Chain.save = struck_begin, struck_cut, struck_save
