from monolith.cluster.call_host import BYE
from monolith.cluster.data_service.profiler_endpoint import PROFILER_VERBS
from monolith.cluster.data_service.service_verbs import DATA_WORKER_VERBS, DISPATCHER_VERBS
from monolith.cluster.disk.file_verbs import FILE_VERBS
from monolith.cluster.host_verbs import GROUP_VERBS, SHARD_VERBS
from monolith.cluster.job.job_verbs import JOB_VERBS
from monolith.cluster.server_verbs import SERVER_VERBS
from monolith.cluster.wire.verb_numbers import NUMBER_OF_VERB, VERB_OF_NUMBER


def test_every_verb_of_hosts_has_a_number():
    verbs = {BYE, *SHARD_VERBS, *GROUP_VERBS, *SERVER_VERBS, *FILE_VERBS, *JOB_VERBS}
    verbs |= {*DISPATCHER_VERBS, *DATA_WORKER_VERBS, *PROFILER_VERBS}
    assert set(NUMBER_OF_VERB) == verbs


def test_numbers_stay():
    some = ("bye", "apply_gradients", "pull", "push", "update_calls", "open_table", "write_values")
    assert [NUMBER_OF_VERB[verb] for verb in some] == [1, 2, 32, 33, 40, 44, 49]


def test_numbers_are_those_of_one_verb():
    assert {VERB_OF_NUMBER[number]: number for number in VERB_OF_NUMBER} == NUMBER_OF_VERB
