"""What each failure of the hub means for the user, in one to three lines."""

from __future__ import annotations

from memsim.errors import HubError, nearest_names
from memsim.resolve.hub_http import HubStatusError, HubUnreachableError


def explain(repo_id: str, revision: str, error: HubStatusError | HubUnreachableError) -> HubError:
    """Return the error for a question about `repo_id` at `revision` that failed with `error`.

    Nothing that the server wrote is repeated: it may hold anything, and the request's token stays out of messages.
    """
    if isinstance(error, HubUnreachableError):
        return HubError(
            f"{repo_id} is not in the hub's cache, and {error}.{_near(repo_id)}\n"
            "Try again with a connection, or give a catalog name (memsim catalog) or a folder with config.json."
        )
    if error.code == "RevisionNotFound":
        return HubError(
            f"{repo_id} has no revision {revision!r} on the hub.\n"
            f"Give a branch, tag or full commit hash from {page(repo_id)}/commits."
        )
    if error.code == "EntryNotFound":
        return HubError(
            f"{repo_id} has no config.json at revision {revision!r}, so it is no transformers model.\n"
            f"See its files at {page(repo_id)}/tree/{revision}."
        )
    if error.code == "GatedRepo" or error.status == 403:
        return _forbidden(repo_id, error)
    if error.status in (401, 404) or error.code == "RepoNotFound":
        return _not_found(repo_id, error)
    return _server(repo_id, error)


def page(repo_id: str) -> str:
    """Return the address of the model's page."""
    from huggingface_hub import constants

    scheme, _, rest = constants.ENDPOINT.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}/{repo_id}"


def _not_found(repo_id: str, error: HubStatusError) -> HubError:
    if error.message.startswith("Invalid credentials"):
        return HubError(
            "the hub refuses the token that was sent (HTTP 401): it is invalid or has expired.\n"
            "Correct HF_TOKEN, log in again (hf auth login), or log out to ask without a token."
        )
    return HubError(
        f"the hub has no model {repo_id}, or it is private (HTTP {error.status}).{_near(repo_id)}\n"
        "Check the spelling; for a private model set HF_TOKEN or log in (hf auth login)."
    )


def _forbidden(repo_id: str, error: HubStatusError) -> HubError:
    if error.message == "Access to this resource is disabled.":
        return HubError(f"the hub has disabled access to {repo_id} (HTTP {error.status}); see {page(repo_id)}.")
    if error.code == "GatedRepo":
        return HubError(
            f"{repo_id} is gated (HTTP {error.status}): accept its licence at {page(repo_id)},\n"
            "then set HF_TOKEN to a token of that account or log in (hf auth login)."
        )
    return HubError(
        f"the hub forbids access to {repo_id} (HTTP 403).\n"
        f"Check the permissions of your token (HF_TOKEN) and whether {page(repo_id)} asks you to accept a licence."
    )


def _server(repo_id: str, error: HubStatusError) -> HubError:
    if error.status == 429:
        wait = f"{error.retry_after} seconds" if error.retry_after.isdecimal() else "a few minutes"
        return HubError(
            f"the hub limits your rate of requests (HTTP 429, asking for {repo_id}).\n"
            f"Wait {wait[:20]}, or set HF_TOKEN: accounts have a higher limit."
        )
    if error.status >= 500:
        return HubError(
            f"the hub failed (HTTP {error.status}, asking for {repo_id}).\n"
            "Nothing is wrong on your side: try again later, or see https://status.huggingface.co."
        )
    return HubError(
        f"the hub answered HTTP {error.status} for {repo_id}, which memsim does not expect.\nCheck HF_ENDPOINT."
    )


def _near(repo_id: str) -> str:
    from memsim import catalog

    near = [name for name in nearest_names(repo_id, catalog.names()) if name.lower() != repo_id.lower()]
    return f" Did you mean {', '.join(near)}?" if near else ""
