//! The fields of a file of tests.

use super::{Table, field};

pub(crate) static SCENARIOS: Table = Table {
    name: "a scenario file",
    fields: &[&[
        field(
            "rules",
            "a path such as `shop.yaml`, a list of paths, or a rules document",
            "needed",
            "The rules under test: paths beside this file, or a document written out in place.",
        ),
        field(
            "tests",
            "a list of tests",
            "needed",
            "The tests, each with an empty store of its own. A file may have several documents, each with its rules and tests.",
        ),
    ]],
};

pub(crate) static TEST: Table = Table {
    name: "a test",
    fields: &[&[
        field(
            "name",
            "a name such as `five logins a minute`",
            "needed",
            "Unique in the file.",
        ),
        field(
            "start",
            "an instant such as `2026-03-29T00:30:00Z`",
            "`1970-01-01T00:00:00Z`",
            "What the wall clock says at `0s`.",
        ),
        field(
            "domain",
            "the name of a domain",
            "that of the rules, if there is one only",
            "The domain that is asked.",
        ),
        field(
            "steps",
            "a list such as `[{at: 0s, entries: {path: /login}, expect: {outcome: allow}}]`",
            "needed",
            "What happens, in the order written.",
        ),
    ]],
};

pub(crate) static STEP: Table = Table {
    name: "a step",
    fields: &[&[
        field(
            "at",
            "a duration such as `1.5s`",
            "needed",
            "When it happens, counted from `start`. It may be earlier than the step before: then both clocks go back.",
        ),
        field(
            "op",
            "`acquire`, `peek`, `reserve`, `settle`, `cancel`, `release`, `renew`, `ban`, `lift` or `forgive`",
            "`acquire`",
            "Ask and charge, only ask, charge an estimate; end or renew what was held under an `id`; or ban keys, lift their bans or forgive them by hand.",
        ),
        field(
            "id",
            "a name such as `job-1`",
            "one of its own",
            "Names what a call holds, permits too, and what a later step ends. The same name twice charges once.",
        ),
        field(
            "hold",
            "a duration such as `30s`",
            "`1m`",
            "How long a reservation can be settled.",
        ),
        field(
            "actual",
            "a whole number such as `0`",
            "needed to settle",
            "What a reservation cost in truth.",
        ),
        field(
            "failed",
            "`true` or `false`",
            "`false`",
            "A `release` that says the work failed for want of room or time.",
        ),
        field(
            "max_wait",
            "a duration such as `2s`",
            "does not wait",
            "How long an `acquire` would wait for its turn. The answer comes at once, with the wait as its `delay`; it is charged when the turn comes.",
        ),
        field(
            "rule",
            "the name of a rule",
            "all rules that match",
            "By hand: the rule whose key is meant. The `entries` are then the values of its `per`.",
        ),
        field(
            "for",
            "a duration such as `10m`",
            "needed to ban",
            "How long a ban lasts.",
        ),
        field(
            "entries",
            "a map such as `{method: POST, path: /login}`",
            "none",
            "The entries of the query's descriptor.",
        ),
        field(
            "descriptors",
            "a list such as `[{entries: {tenant: acme}, cost: 3}]`",
            "",
            "Several descriptors in one query, in place of `entries` and `cost`.",
        ),
        field(
            "cost",
            "a whole number such as `2`",
            "`1`",
            "Units that each call costs.",
        ),
        field(
            "domain",
            "the name of a domain",
            "the test's",
            "The domain that is asked.",
        ),
        field(
            "repeat",
            "a whole number from 1 to 1000000",
            "`1`",
            "How many such calls are made. Each that holds or waits has an id of its own.",
        ),
        field(
            "every",
            "a duration such as `1s`",
            "all at once",
            "Time between the calls of `repeat`.",
        ),
        field(
            "expect",
            "a map such as `{outcome: deny, retry_after: 60s}`",
            "nothing",
            "What each call must answer, or how many of each answer there must be.",
        ),
        field(
            "set_rules",
            "a path such as `other.yaml`, a list of paths, or a rules document",
            "",
            "In place of a call: these rules come into force, as by a reload.",
        ),
    ]],
};

pub(crate) static DESCRIPTOR: Table = Table {
    name: "a descriptor",
    fields: &[&[
        field(
            "entries",
            "a map such as `{tenant: acme}`",
            "none",
            "Its entries.",
        ),
        field(
            "cost",
            "a whole number such as `2`",
            "`1`",
            "Units that it costs.",
        ),
    ]],
};

pub(crate) static EXPECT: Table = Table {
    name: "an expectation",
    fields: &[&[
        field(
            "outcome",
            "`allow` or `deny`; of an ending `settled`, `cancelled`, `released`, `expired`, `stands` or `unknown`",
            "",
            "Whether the call may go on; or what became of the hold. `allow` is what a rule allows: where no limit applies, say `unmatched: true`.",
        ),
        field(
            "repeated",
            "`true` or `false`",
            "",
            "Of an ending: whether it was over before, so that nothing changed.",
        ),
        field(
            "changed",
            "a whole number such as `1`",
            "at least 1",
            "Of what is done by hand: to how many keys it made a difference.",
        ),
        field(
            "binding",
            "the name of a rule, or `null`",
            "",
            "The rule that refuses with the longest wait, or else the one under which the fewest further calls like this one pass.",
        ),
        field(
            "remaining",
            "a whole number such as `0`, or `null`",
            "",
            "The largest cost that the binding rule would allow after this answer.",
        ),
        field(
            "retry_after",
            "a duration such as `60s`, a range such as `{at_least: 50s}`, or `null`",
            "",
            "The shortest wait after which the same call could pass; `null` when it passes, or never will.",
        ),
        field(
            "reset_after",
            "a duration such as `60s`, a range such as `{at_least: 50s}`, or `null`",
            "",
            "Time until nothing is used any more.",
        ),
        field(
            "delay",
            "a duration such as `500ms`, or a range such as `{about: 500ms, tolerance: 10ms}`",
            "",
            "How long an allowed call should wait (`leaky_bucket`).",
        ),
        field(
            "permanent",
            "`true` or `false`",
            "",
            "Whether it can never pass: the cost is above what the limit can hold.",
        ),
        field(
            "banned",
            "`true` or `false`",
            "",
            "Whether it is refused by a ban.",
        ),
        field(
            "unmatched",
            "`true` or `false`",
            "",
            "Whether no limit applied.",
        ),
        field(
            "rules",
            "a map such as `{login: {remaining: 0}, api: null}`",
            "",
            "What single rules decide, by their names, those in shadow too; `null` for one that has no say.",
        ),
        field(
            "allowed",
            "a whole number such as `50`",
            "",
            "How many of the calls of `repeat` a rule allowed; only `denied` may stand beside it. It fails where no limit applies.",
        ),
        field(
            "denied",
            "a whole number such as `550`",
            "",
            "How many of the calls of `repeat` were denied; only `allowed` may stand beside it.",
        ),
    ]],
};

pub(crate) static EXPECT_RULE: Table = Table {
    name: "an expectation on one rule",
    fields: &[&[
        field(
            "outcome",
            "`allow` or `deny`",
            "",
            "Whether the rule would let the call go on.",
        ),
        field(
            "remaining",
            "a whole number such as `0`",
            "",
            "The largest cost that it would allow after this answer.",
        ),
        field(
            "retry_after",
            "a duration such as `60s`, a range such as `{at_least: 50s}`, or `null`",
            "",
            "The shortest wait after which it could allow the call.",
        ),
        field(
            "reset_after",
            "a duration such as `60s`, or a range such as `{at_most: 60s}`",
            "",
            "Time until nothing is used of it any more.",
        ),
        field(
            "delay",
            "a duration such as `500ms`, or a range such as `{about: 500ms, tolerance: 10ms}`",
            "",
            "How long an allowed call should wait for it.",
        ),
        field(
            "permanent",
            "`true` or `false`",
            "",
            "Whether it can never allow the call.",
        ),
        field(
            "banned",
            "`true` or `false`",
            "",
            "Whether it refuses by a ban.",
        ),
    ]],
};

pub(crate) static WAIT: Table = Table {
    name: "a range of waits",
    fields: &[&[
        field(
            "at_least",
            "a duration such as `50s`",
            "`0s`",
            "The shortest that is expected.",
        ),
        field(
            "at_most",
            "a duration such as `60s`",
            "any",
            "The longest that is expected.",
        ),
        field(
            "about",
            "a duration such as `60s`",
            "",
            "What is expected, give or take the `tolerance`, which stands beside it.",
        ),
        field(
            "tolerance",
            "a duration such as `1s`",
            "",
            "How much shorter or longer than `about` it may be.",
        ),
    ]],
};
