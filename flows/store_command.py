"""`klear store ls|du|verify|gc`: what the store holds, and whether it is whole."""

import argparse
import sys
from collections import defaultdict
from datetime import datetime
from itertools import chain

from configs.explain import nearest
from configs.stage_names import STAGES
from flows.quantities import duration, size
from tasks.shared_results import remove_shared, results, shared_unreadable, shared_waste
from tasks.shared_store import SharedStore
from tasks.store import Store
from tasks.store_care import damaged, is_busy, published, remove, unreadable, waste

OK, FAILED = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The four things to do with a store."""
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing = actions.add_parser("ls", help="every result, the oldest first")
    listing.add_argument("stage", nargs="?", default="", help="only this stage")
    actions.add_parser("du", help="results and bytes of every stage")
    actions.add_parser("verify", help="read every file and compare its digest")
    gc = actions.add_parser("gc", help="list what no report needs; --yes removes it")
    gc.add_argument("--days", type=_days, default=7.0, help="keep what is younger (%(default)g)")
    gc.add_argument(
        "--uploads",
        action="store_true",
        help="also uploads to the shared store that no result names; only while nobody uploads",
    )
    gc.add_argument(
        "--shared",
        action="store_true",
        help="instead: shared results that no page was made from; only while no machine runs",
    )
    gc.add_argument("--yes", action="store_true", help="remove, instead of listing only")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not days >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days, zero or more")
    return days


def run(store: Store, arguments: argparse.Namespace) -> int:
    """Exit code: 1 when `verify` finds damage, else 0."""
    match arguments.action:
        case "ls":
            return _list(store, arguments.stage)
        case "du":
            return _disk_use(store)
        case "verify":
            return _verify(store)
        case _ if arguments.shared:
            return _collect_shared(store, arguments.days, remove_them=arguments.yes)
        case _:
            _collect_garbage(store, arguments.days, remove_it=arguments.yes)
            if isinstance(store, SharedStore):
                _collect_uploads(store, remove_them=arguments.uploads and arguments.yes)
            return OK


def _list(store: Store, stage: str) -> int:
    shared = isinstance(store, SharedStore)
    nothing = True
    for manifest, count, made, where in results(store, stage):
        nothing = False
        when = datetime.fromtimestamp(made).astimezone().strftime("%Y-%m-%d %H:%M")
        name = f"{manifest.stage}/{manifest.key}"
        place = f"  {where}" * shared
        print(f"{when}  {name:36} {size(count):>9}  {duration(manifest.seconds):>12}{place}")
    if nothing:
        meant = nearest(stage, STAGES) if stage not in STAGES else ""
        print(f"no results{f' of {stage}' * bool(stage)} in {store.root}{meant}", file=sys.stderr)
    return OK


def _disk_use(store: Store) -> int:
    totals: dict[str, list[int]] = defaultdict(list)
    for manifest, count, _ in published(store):
        totals[manifest.stage].append(count)
    order = {name: place for place, name in enumerate(STAGES)}
    for stage in sorted(totals, key=lambda s: (order.get(s, len(order)), s)):
        print(f"{stage:18} {len(totals[stage]):5}  {size(sum(totals[stage])):>9}")
    everything = [count for counts in totals.values() for count in counts]
    print(f"{'all':18} {len(everything):5}  {size(sum(everything)):>9}   {store.root}")
    return OK


def _verify(store: Store) -> int:
    here = ((problem, "computes it again") for _, problem in damaged(store))
    shared = store.shared_damage() if isinstance(store, SharedStore) else ()
    resent = "sends the copy of this machine again, or computes it again where there is none"
    checked, wrong = 0, 0
    for problem, remedy in chain(here, ((problem, resent) for _, problem in shared)):
        checked += 1
        if problem:
            wrong += 1
            print(f"damaged: {problem}; the next run here that makes it {remedy}")
    print(f"{checked} results read, {wrong} damaged")
    return FAILED if wrong else OK


def _collect_garbage(store: Store, days: float, *, remove_it: bool) -> None:
    if is_busy(store):
        print("a run is under way: results are kept, for it may be reading them")
    elif lost := unreadable(store):
        print(
            f"{', '.join(lost[:3])} cannot be read: results are kept, for nobody knows what it was "
            f"made from; run again what made it, or remove its folder below {store.root}"
        )
    found = waste(store, days)
    freed = 0
    for rubbish in found:
        gone = remove_it and remove(store, rubbish)
        freed += rubbish.bytes if gone or not remove_it else 0
        state = "removed" if gone else "in use, kept" if remove_it else "would go"
        print(f"{state:12} {rubbish.name:44} {size(rubbish.bytes):>9}  {rubbish.why}")
    verb = "freed" if remove_it else "would be freed; --yes removes"
    print(f"{len(found)} folders, {size(freed)} {verb}")


def _collect_shared(store: Store, days: float, *, remove_them: bool) -> int:
    """What another machine is making now from an old result is not known here."""
    if not isinstance(store, SharedStore):
        print("the store is not shared: KLEAR_STORE is no address")
        return FAILED
    if is_busy(store):
        print("a run is under way here: shared results are kept, for it may be reading them")
        return OK
    if lost := [*shared_unreadable(store), *unreadable(store)]:
        print(
            f"{', '.join(lost[:3])} cannot be read: shared results are kept, for nobody knows what "
            "it was made from; a newer klear may have made it, or run again what did"
        )
    found = shared_waste(store, days)
    for result in found:
        if remove_them:
            remove_shared(store, result)
        name = f"{result.manifest.stage}/{result.manifest.key}"
        state = "removed" if remove_them else "would go"
        print(f"{state:12} {name:44} {size(result.bytes):>9}  no page was made from it")
    verb = "freed" if remove_them else "would be freed; --yes removes, when no machine runs"
    print(f"{len(found)} shared results, {size(sum(r.bytes for r in found))} {verb}")
    return OK


def _collect_uploads(store: SharedStore, *, remove_them: bool) -> None:
    """An upload under way on another machine looks like one that was killed."""
    found = store.unnamed_uploads()
    for name in found:
        if remove_them:
            store.objects.remove(name)
        print(f"{'removed' if remove_them else 'unnamed':12} {store.objects.url}/{name}")
    if found and not remove_them:
        print(
            f"{len(found)} uploads that no result names: killed, replaced, or under way; "
            "--uploads --yes removes them, when no machine is uploading"
        )
