"""Whether a server's settings are those of the cluster that it wants to attach to."""

from dataclasses import asdict, replace

from triptych.config import Settings

# A server's own affairs, and what the running cluster has its own value of.
_MAY_DIFFER = frozenset({"serve.cluster_secret", "serve.routers", "serve.ray", "serve.served_name"}) | frozenset(
    {"serve.encoders", "serve.prefills", "serve.decodes"}
)


def differences(running: Settings, wanted: Settings) -> tuple[str, ...]:
    """Settings of workers that are not the same, each as it is in the running cluster."""
    there, here = (
        {f"{table}.{name}": value for table, entries in asdict(each).items() for name, value in entries.items()}
        for each in (running, wanted)
    )
    return tuple(
        f"{name} is {there[name]!r} there and {here[name]!r} here"
        for name in there
        if name not in _MAY_DIFFER and not name.startswith("router.") and there[name] != here[name]
    )


def same_first_model(running: Settings, wanted: Settings, serving: str) -> tuple[Settings, Settings]:
    """Both, to be compared: a server that names the model that the cluster began with gets that which serves now."""
    began_with = running.serve.model
    running = replace(running, serve=replace(running.serve, model=serving))
    if wanted.serve.model == began_with:
        wanted = replace(wanted, serve=replace(wanted.serve, model=serving))
    return running, wanted
