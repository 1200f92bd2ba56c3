"""What a result was made from and what was made of it, read from the manifests in the store."""

from collections.abc import Iterable, Iterator, Sequence

from tasks.store import Manifest, Store


def ancestors(store: Store, *results: Manifest) -> list[Manifest]:
    """Everything that `results` were made from, each once, oldest first, without themselves.

    A result that is gone from the store ends its branch.
    """
    seen: set[tuple[str, str]] = {(r.stage, r.key) for r in results}
    return list(_ancestors(store, results, seen))


def _ancestors(
    store: Store, results: Iterable[Manifest], seen: set[tuple[str, str]]
) -> Iterator[Manifest]:
    for result in results:
        for ref in result.inputs:
            if (ref.stage, ref.key) not in seen:
                seen.add((ref.stage, ref.key))
                try:
                    parent = store.manifest(ref)
                except FileNotFoundError:
                    continue
                yield from _ancestors(store, [parent], seen)
                yield parent


def descendants(everything: Sequence[Manifest], result: Manifest) -> list[Manifest]:
    """All of `everything` that was made of `result`, directly or not; a resampled input counts
    only with the digest that was read."""
    found: list[Manifest] = []
    digests = {(result.stage, result.key, result.digest)}
    grew = True
    while grew:
        grew = False
        for manifest in everything:
            here = (manifest.stage, manifest.key, manifest.digest)
            if here not in digests and any(
                (i.stage, i.key, i.digest) in digests for i in manifest.inputs
            ):
                digests.add(here)
                found.append(manifest)
                grew = True
    return found
