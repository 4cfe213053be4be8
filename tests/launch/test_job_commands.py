import pytest

from monolith.launch import JobCommands, RunFolder


@pytest.fixture
def folder(tmp_path):
    with RunFolder(str(tmp_path)) as folder:
        yield folder


def lines(folder, *size, **options):
    """Name of each role -> words of its command line after the program, joined."""
    commands = JobCommands("task.py", *size, program=("monolith",), **options)
    return {role.name: " ".join(role.command) for role in commands.roles(folder)}


def test_a_job_has_its_servers_and_workers(folder):
    assert list(lines(folder, 2, 3)) == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]


def test_a_server_gets_the_task_its_place_and_an_address(folder):
    address = folder.ipc_address("ps-1")
    assert lines(folder, 2, 1)["ps-1"] == (
        f"monolith ps task.py --index 1 --num-servers 2 --discovery {folder.discovery} "
        f"--bind {address} --status-seconds 1 --no-hints --json"
    )


def test_with_tcp_a_server_takes_a_free_port(folder):
    assert "--bind 127.0.0.1:0 " in lines(folder, 1, 1, with_tcp=True)["ps-0"]


def test_a_worker_gets_the_servers(folder):
    assert lines(folder, 2, 3)["worker-1"] == (
        f"monolith worker task.py --index 1 --num-workers 3 --servers {folder.discovery} "
        "--num-servers 2 --no-hints --json"
    )


def test_data_and_options_go_to_workers(folder):
    more = {"--checkpoints": "saves", "--save-every": 5, "--resume": True, "--save-rate": None}
    roles = lines(folder, 1, 1, data=["a", "eval=b"], worker_options=more)
    assert "--checkpoints saves --save-every 5 --resume --data a --data eval=b" in roles["worker-0"]
    assert "--data" not in roles["ps-0"]


def test_settings_go_to_both(folder):
    roles = lines(folder, 1, 1, settings=["batch_size=8"], settings_file="s.json")
    assert all("--settings s.json" in line for line in roles.values())
    assert all(line.endswith("--set batch_size=8 --no-hints --json") for line in roles.values())


def test_threads_are_a_setting_of_workers_before_those_of_the_user(folder):
    roles = lines(folder, 1, 1, settings=["a=1"], num_threads=2)
    assert roles["worker-0"].endswith("--set train.threads=2 --set a=1 --no-hints --json")
    assert "train.threads" not in roles["ps-0"]


def test_a_discovery_takes_the_place_of_the_folder(folder):
    roles = lines(folder, 1, 1, discovery="zk://a:1/job", with_tcp=True)
    assert "--discovery zk://a:1/job --bind 127.0.0.1:0 " in roles["ps-0"]
    assert "--servers zk://a:1/job --num-servers 1 " in roles["worker-0"]
