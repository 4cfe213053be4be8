"""Give stacks on SIGUSR1; the import installs the handler."""

from monolith.observe.signals import install_stack_trace_handler, print_stack_trace

__all__ = ["add_siguser1_handler", "print_stack_trace"]

add_siguser1_handler = install_stack_trace_handler
add_siguser1_handler()
