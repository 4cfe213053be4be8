"""Give the messages of the service `Controller`, which need the extra `cluster`."""

from monolith.control.grpc_extra import load_messages

_messages = load_messages("controller")

StopTrainingRequest = _messages.StopTrainingRequest
StopTrainingResponse = _messages.StopTrainingResponse
ResumeTrainingRequest = _messages.ResumeTrainingRequest
ResumeTrainingResponse = _messages.ResumeTrainingResponse
GetBlockStatusRequest = _messages.GetBlockStatusRequest
GetBlockStatusResponse = _messages.GetBlockStatusResponse
SaveCheckpointRequest = _messages.SaveCheckpointRequest
SaveCheckpointResponse = _messages.SaveCheckpointResponse
GetTrainingStatusRequest = _messages.GetTrainingStatusRequest
GetTrainingStatusResponse = _messages.GetTrainingStatusResponse
