"""What TensorBoard shows of a run: its event multiplexer and its data provider."""

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.util.tensor_util import make_ndarray


class RunReader:
    """Reads the event files of a folder, with all their steps."""

    def __init__(self, folder, plugins=()):
        self._multiplexer = EventMultiplexer(tensor_size_guidance=dict.fromkeys(plugins, 0))
        self._multiplexer.AddRun(str(folder), "run").Reload()
        self._provider = MultiplexerDataProvider(self._multiplexer, str(folder))

    def scalars(self):
        """Tag -> what TensorBoard knows of its scalars."""
        listing = self._provider.list_scalars(
            RequestContext(), experiment_id="", plugin_name="scalars"
        )
        return listing["run"]

    def tensors(self, plugin):
        """Tag -> what TensorBoard knows of the tensors of a plugin, such as `plugin_content`."""
        listing = self._provider.list_tensors(
            RequestContext(), experiment_id="", plugin_name=plugin
        )
        return listing["run"]

    def values(self, tag):
        """Steps and arrays of a tag."""
        return [
            (event.step, make_ndarray(event.tensor_proto))
            for event in self._multiplexer.Tensors("run", tag)
        ]
