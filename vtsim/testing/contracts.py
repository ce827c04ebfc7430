"""The clauses that a policy is held to beside the named invariants, each with a name of its own.

`vtsim.ports.MemoryPolicy` says them in words; a `ContractError` says which one does not hold, and
whose method it is about. Nothing here looks at a policy.
"""

from __future__ import annotations

CONTRACTS: dict[str, str] = {
    # declaration
    "declared-name": "a policy has a name",
    "declared-kernels": "it names the kernel families that can read its memory",
    "declared-lookahead": "it says how many steps ahead its plans are submitted",
    "declared-fenced": "it says whether memory waits for kernels",
    "declared-grain": "it says in which multiples it serves prefixes",
    "parameters-typed": "parameters are declared once: fields of a frozen dataclass, with defaults",
    "parameters-shown": "parameters() shows every declared one, as JSON",
    # any call
    "raises-nothing": "no call raises",
    "answers-in-time": "every call returns",
    "answer-type": "a call returns what its contract says",
    "arguments-unchanged": "sequences, batches and the plan NOTHING are only read",
    "deterministic": "equal calls, equal answers, in any process",
    # match
    "match-pure": "match changes nothing",
    "match-bounded": "at least one token of a prompt is computed",
    "match-named": "only tokens with known content are matched",
    "match-computed": "only tokens that were computed are matched",
    "match-in-memory": "what was matched is what lies there when its sequence begins",
    "match-grain": "matches are multiples of grain_tokens",
    # refusals
    "refusal-changes-nothing": "a call that returns a Shortage has changed nothing",
    "shortage-positive": "a Shortage lacks something",
    "shortage-clears": "what a Shortage says is pending helps once it is retired",
    "whole-fits": "create grants only what fits whole",
    # plans
    "plan-form": "a plan has a phase of its call, counts by kind, and sizes",
    "plan-within-limit": "a granted plan takes no more than the limit leaves",
    "undo-exact": "a decision that is undone leaves the state before it",
    "placement-decides-nothing": "placement on and off decide alike",
    "unfenced-retires-nothing": "a policy that is not fenced has nothing to retire",
    # many steps at once
    "extend-repeats": "extend by n steps is n times extend by one",
    "last-is-true": "what is said to be due in the last step of several is",
    "peak-is-a-bound": "no step has more due than the peak says",
    "headroom-pure": "headroom changes nothing",
    "headroom-at-most": "headroom promises no more than it is asked",
    "headroom-granted": "what headroom promises is granted",
    "headroom-without-eviction": "what headroom promises evicts nothing through the driver",
    "retire-later": "retire_later: a retire counts alike before, between and after the steps",
    "leap-equals-step": "leaping and stepping decide, hold and take alike",
    # memory
    "held-while-read": "memory stays while a kernel may read it",
    "tokens-are-mapped": "every token of a sequence has memory",
    "written-has-one-owner": "what a sequence writes is nobody else's",
    "one-slot-each": "a contiguous sequence lies in one slot, alone",
    # books
    "usage-not-negative": "no category is negative",
    "usage-adds-up": "the categories make what the device has given",
    "usage-within-limit": "what is held stays under the limit",
    "live-is-live": "kv_live is the bytes of the tokens that sequences hold",
    # victims
    "victim-pure": "select_victim changes nothing",
    "victim-runs": "the victim runs; while anybody runs there is one",
    # whole runs
    "progress": "a run comes to its end",
    "answered": "every request is completed, or rejected with a reason",
    "plenty-is-served": "with memory for everybody nobody is rejected or preempted",
    "nothing-left": "nothing is held behind the teardown",
    "refused-alike": "a refusal by the device ends alike with placement on and off",
}


class ContractError(AssertionError):
    """A clause of `CONTRACTS` that does not hold. `method`: whose fault it is, "" if not known."""

    def __init__(self, contract: str, detail: str, method: str = "") -> None:
        self.contract = contract
        self.detail = detail
        self.method = method
        super().__init__(f"contract {contract} broken: {detail}")


def demand(holds: object, contract: str, detail: str, method: str = "") -> None:
    """Raises ContractError unless it `holds`."""
    if not holds:
        raise ContractError(contract, detail, method)
