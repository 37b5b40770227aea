"""The ClientApp of a silo: it hands each message to the silo's trainer.

What is answered is in ``handlers``. Flower starts a process for every message; this one imports no
torch. Where Flower keeps its processes itself (in its simulation), and on systems without Unix
sockets, messages are answered in the same process.
"""

from __future__ import annotations

import sys

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fednag.flower import resident


class Silo(ClientApp):
    """Answers any message, by way of the trainer."""

    def __call__(self, message: Message, context: Context) -> Message:
        if "ray" in sys.modules or not resident.HERE:
            from fednag.flower import handlers

            return handlers.app(message, context)
        answer, context.state = resident.Trainer.of_parent().ask(message, context)
        return answer


app = Silo()
