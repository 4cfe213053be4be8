"""Variables of the MLP launch environment, for tests."""

PLAIN = {
    "MLP_ROLE": "worker",
    "MLP_ROLE_INDEX": "1",
    "MLP_PORT": "7101",
    "MLP_SSH_PORT": "9022",
    "MLP_FRAMEWORK": "TensorFlow",
    "MLP_CPU": "8",
    "MLP_GPU_TYPE": "A100",
    "MLP_PS_NUM": "2",
    "MLP_WORKER_NUM": "2",
    "MLP_DISPATCHER_NUM": "1",
    "MLP_DSWORKER_NUM": "1",
    "MLP_A_B_NUM": "9",  # four parts: no role
    "MLP_PS_0_PRIMARY_HOST": "'10.0.0.1'",
    "MLP_PS_0_HOST": "192.168.0.1",
    "MLP_PS_0_PORT": "7000",
    "MLP_PS_1_PRIMARY_HOST": '"10.0.0.2"',
    "MLP_PS_1_PORT": "7001",
    "MLP_WORKER_0_PRIMARY_HOST": "10.0.0.3",
    "MLP_WORKER_0_PORT": "7100",
    "MLP_WORKER_1_PRIMARY_HOST": "2001:db8::7",
    "MLP_WORKER_1_PORT": "7101",
    "MLP_DISPATCHER_0_PRIMARY_HOST": "10.0.0.5",
    "MLP_DISPATCHER_0_PORT": "5000",
    "MLP_PS_ALL_PRIMARY_HOSTS": "10.0.0.1,10.0.0.2",
    "MLP_PS_ALL_PRIMARY_ADDRS": "10.0.0.1:7000, 10.0.0.2:7001",
}

MPI = {
    "MLP_ROLE": "WORKER",
    "MLP_PORT": "2222",
    "MLP_WORKER_NUM": "2",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MLP_WORKER_0_PRIMARY_HOST": "10.0.0.1",
    "MLP_WORKER_1_PRIMARY_HOST": "10.0.0.2",
}
