"""The starter model as a deployment of Ray Serve, with the APIs of `ostro serve`.

pip install "ostro" "ray[serve]"
serve run docs.examples.ray_serve:deployment
"""

from __future__ import annotations

from ray import serve

from ostro import Settings
from ostro.http import Application

MODELS = [Settings(reference="starter", max_seqs=16)]
STORE = "none"
"""A folder that all replicas share, for responses, files and batches."""


def build() -> Application:
    """Return the application of a replica; its lifespan starts the engine."""
    return Application(MODELS, store=STORE)


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=64,
    ray_actor_options={"num_cpus": 1},
    graceful_shutdown_timeout_s=40,
)
@serve.ingress(build)
class Ostro:
    """A replica: an API process with its engine."""


deployment = Ostro.bind()
