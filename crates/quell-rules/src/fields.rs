//! Fields: every field that a rules file or a scenario file may have. The parser, its messages and
//! the reference in `docs/rules.md` are all made from these tables.

use crate::kind::{BUCKETS, Kind, WINDOWS};

/// A map whose fields are known.
#[derive(Debug)]
pub(crate) struct Table {
    /// What such a map is called in messages and headings, with its article.
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
}

/// One field.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// The algorithms that have it; empty: it has to do with none.
    pub(crate) of: &'static [Kind],
    /// Known, but of a version to come.
    pub(crate) later: bool,
    /// What to write, with an example.
    pub(crate) write: &'static str,
    /// What holds if nothing is said.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
}

impl Table {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Whether a map is not complete without the field.
    pub(crate) fn needs(&self, name: &str) -> bool {
        self.field(name)
            .is_some_and(|field| field.default.starts_with("needed"))
    }

    /// The fields that may be written today.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let available = self.fields.iter().filter(|field| !field.later);
        available.map(|field| field.name).collect()
    }
}

const fn field(
    name: &'static str,
    write: &'static str,
    default: &'static str,
    about: &'static str,
) -> Field {
    Field {
        name,
        of: &[],
        later: false,
        write,
        default,
        about,
    }
}

const fn later(name: &'static str) -> Field {
    let mut field = field(name, "", "", "");
    field.later = true;
    field
}

impl Field {
    const fn of(mut self, kinds: &'static [Kind]) -> Self {
        self.of = kinds;
        self
    }
}

const LIST_OF_TESTS: &str = "a list of tests";

pub(crate) static DOCUMENT: Table = Table {
    name: "a document",
    fields: &[
        field(
            "domain",
            "a name such as `shop`",
            "needed",
            "The namespace of the rules; queries name it. Several documents may say the same domain: their rules follow one another.",
        ),
        field(
            "rules",
            "a list of rules",
            "no rules",
            "The rules, in the order in which they are shown and ties are broken.",
        ),
        field(
            "defaults",
            "a map such as `{shadow: true}`",
            "",
            "What holds for the rules of this document unless they say otherwise.",
        ),
        later("colocate"),
    ],
};

pub(crate) static DEFAULTS: Table = Table {
    name: "a map of defaults",
    fields: &[
        field(
            "shadow",
            "`true` or `false`",
            "`false`",
            "Whether rules are in shadow that do not say `shadow` themselves.",
        ),
        later("on_failure"),
        later("nodes"),
        later("max_over_admission"),
        later("rung"),
    ],
};

const MATCH: &str = "a map such as `{method: POST, path: \"/api/*\"}`";

pub(crate) static RULE: Table = Table {
    name: "a rule",
    fields: &[
        field("name", "a name such as `login-per-ip`", "needed", "Unique within the domain. A reload knows a rule by it."),
        field("match", MATCH, "every query", "What a descriptor must have: entry and value, or a list of values one of which must match. `*` is any run of characters, `/` included; `10.0.0.0/8` is a network. All entries must match."),
        field("per", "a list such as `[tenant]` or `[{remote_address: {v4: 32, v6: 64}}]`", "one key for all", "The entries whose values tell keys apart; an address may be cut to a prefix."),
        field("on_missing", "`skip` or `shared_key`", "`skip`", "What to do with a descriptor that lacks an entry of `per`: the rule does not apply, or all of them share one key."),
        field("algorithm", "one of the algorithms, such as `token_bucket`", "`token_bucket`", "How the limit counts."),
        field("rate", "a rate such as `100/s`", "needed, or `refill`", "Units per period: `COUNT/PERIOD`.").of(BUCKETS),
        field("burst", "a whole number such as `200`", "the rate's count, at least 1", "The largest cost admitted at one instant from rest.").of(BUCKETS),
        field("refill", "a map such as `{amount: 100, every: 1s}`", "continuous", "Units come in whole batches. It implies `rate`.").of(&[Kind::TokenBucket]),
        field("initial", "a whole number such as `0`", "the burst", "Units that are there when the rule comes into force.").of(&[Kind::TokenBucket]),
        field("delay_after", "a whole number such as `2`", "`0`", "Units that may wait before a call that is not delayed; the burst: never delay, only refuse.").of(&[Kind::LeakyBucket]),
        field("limit", "a limit such as `5/min`, or a whole number beside `window`", "needed", "Units per window; `5/min` says the window as well.").of(WINDOWS),
        field("window", "a duration such as `1m`, or `month`", "needed unless `limit` says it", "The window's length: a duration, or a unit as in a rate.").of(WINDOWS),
        field("align", "`first_request` or `calendar`", "`first_request`", "Where windows lie: from the first request, or on the calendar.").of(&[Kind::FixedWindow]),
        field("time_zone", "a time zone such as `Europe/Berlin`", "`UTC`", "Whose calendar it is; only with `align: calendar`.").of(&[Kind::FixedWindow]),
        field("segments", "a whole number from 2 to 3600", "`10`", "Into how many parts the window is cut: a charge counts at most one of them too long.").of(&[Kind::SlidingWindow]),
        field("max_entries", "a whole number from 1 to 100000", "`10000`", "The longest log of a key. A limit above it is loaded as `sliding_window`, with a warning.").of(&[Kind::SlidingLog]),
        field("ban", "a map such as `{after: 3, within: 10m, for: [1m, 10m]}`", "none", "Refuses every call of a key that was refused too often."),
        field("unlimited", "`true`", "", "The rule adds no limit of its own, only its overrides do."),
        field("overrides", "a list such as `[{when: {tenant: acme}, rate: 1000/s}]`", "none", "Other limits for some; the first whose `when` matches wins."),
        field("cost", "a whole number such as `1`", "the descriptor's cost", "What every call costs here, whatever it says itself."),
        field("shadow", "`true` or `false`", "that of `defaults`", "Evaluated and reported, but never refuses."),
        later("cold_factor"),
        later("adaptive"),
        later("debt"),
        later("lease"),
        later("max"),
        later("max_over_admission"),
        later("nodes"),
        later("on_expiry"),
        later("on_failure"),
        later("queue"),
        later("rung"),
        later("warm_up"),
    ],
};

pub(crate) static OVERRIDE: Table = Table {
    name: "an override",
    fields: &[
        field(
            "when",
            MATCH,
            "needed",
            "What a descriptor must have, as in `match`; at least one entry.",
        ),
        field(
            "unlimited",
            "`true`",
            "",
            "No limit at all; in place of the fields below.",
        ),
        field(
            "algorithm",
            "one of the algorithms, such as `token_bucket`",
            "the rule's",
            "Another than the rule's takes nothing over from the rule but its ban.",
        ),
        field(
            "rate",
            "a rate such as `100/s`",
            "the rule's",
            "As in a rule. Takes the place of the rule's `refill` as well.",
        )
        .of(BUCKETS),
        field(
            "burst",
            "a whole number such as `200`",
            "what the rule says; if it says none, the rate's count",
            "As in a rule.",
        )
        .of(BUCKETS),
        field(
            "refill",
            "a map such as `{amount: 100, every: 1s}`",
            "the rule's",
            "As in a rule. Takes the place of the rule's `rate` as well.",
        )
        .of(&[Kind::TokenBucket]),
        field(
            "initial",
            "a whole number such as `0`",
            "the rule's",
            "As in a rule.",
        )
        .of(&[Kind::TokenBucket]),
        field(
            "delay_after",
            "a whole number such as `2`",
            "the rule's",
            "As in a rule.",
        )
        .of(&[Kind::LeakyBucket]),
        field(
            "limit",
            "a limit such as `5/min`, or a whole number",
            "the rule's",
            "As in a rule; a whole number alone keeps the rule's window.",
        )
        .of(WINDOWS),
        field(
            "window",
            "a duration such as `1m`, or `month`",
            "the rule's",
            "As in a rule.",
        )
        .of(WINDOWS),
        field(
            "align",
            "`first_request` or `calendar`",
            "the rule's",
            "As in a rule.",
        )
        .of(&[Kind::FixedWindow]),
        field(
            "time_zone",
            "a time zone such as `Europe/Berlin`",
            "the rule's",
            "As in a rule.",
        )
        .of(&[Kind::FixedWindow]),
        field(
            "segments",
            "a whole number from 2 to 3600",
            "the rule's",
            "As in a rule.",
        )
        .of(&[Kind::SlidingWindow]),
        field(
            "max_entries",
            "a whole number from 1 to 100000",
            "the rule's",
            "As in a rule.",
        )
        .of(&[Kind::SlidingLog]),
        field(
            "ban",
            "a map such as `{after: 3, within: 10m, for: [1m, 10m]}`",
            "the rule's",
            "As in a rule.",
        ),
        later("cold_factor"),
        later("adaptive"),
        later("debt"),
        later("lease"),
        later("max"),
        later("queue"),
        later("warm_up"),
    ],
};

pub(crate) static REFILL: Table = Table {
    name: "a refill",
    fields: &[
        field(
            "amount",
            "a whole number such as `100`",
            "needed",
            "Units in a batch.",
        ),
        field(
            "every",
            "a duration such as `1s`",
            "needed",
            "Time between batches; ticks count from the first charge after rest.",
        ),
    ],
};

pub(crate) static PREFIX: Table = Table {
    name: "a prefix",
    fields: &[
        field(
            "v4",
            "a whole number from 0 to 32",
            "`32`",
            "How many leading bits of an IPv4 address count.",
        ),
        field(
            "v6",
            "a whole number from 0 to 128",
            "`128`",
            "How many leading bits of an IPv6 address count.",
        ),
    ],
};

pub(crate) static BAN: Table = Table {
    name: "a ban",
    fields: &[
        field(
            "after",
            "a whole number such as `3`",
            "needed",
            "The refusal, from 1 to 1000, that starts the ban.",
        ),
        field(
            "within",
            "a duration such as `10m`",
            "needed unless `after` is 1",
            "How close together those refusals must lie.",
        ),
        field(
            "for",
            "a duration such as `1m`, or a list such as `[1m, 10m, 1h]`",
            "needed",
            "How long the first ban lasts, the second, and so on; the last repeats.",
        ),
    ],
};

pub(crate) static SCENARIOS: Table = Table {
    name: "a scenario file",
    fields: &[
        field(
            "rules",
            "a path such as `shop.yaml`, a list of paths, or a rules document",
            "needed",
            "The rules under test: paths beside this file, or a document written out in place.",
        ),
        field(
            "tests",
            LIST_OF_TESTS,
            "needed",
            "The tests, each with an empty store of its own.",
        ),
    ],
};

pub(crate) static TEST: Table = Table {
    name: "a test",
    fields: &[
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
    ],
};

pub(crate) static STEP: Table = Table {
    name: "a step",
    fields: &[
        field(
            "at",
            "a duration such as `1.5s`",
            "needed",
            "When it happens, counted from `start`. It may be earlier than the step before: then both clocks go back.",
        ),
        field(
            "op",
            "`acquire` or `peek`",
            "`acquire`",
            "Ask and charge, or only ask.",
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
            "How many such calls are made.",
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
    ],
};

pub(crate) static DESCRIPTOR: Table = Table {
    name: "a descriptor",
    fields: &[
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
    ],
};

pub(crate) static EXPECT: Table = Table {
    name: "an expectation",
    fields: &[
        field(
            "outcome",
            "`allow` or `deny`",
            "",
            "Whether the call may go on.",
        ),
        field(
            "binding",
            "the name of a rule, or `null`",
            "",
            "The rule that decided.",
        ),
        field(
            "remaining",
            "a whole number such as `0`, or `null`",
            "",
            "The largest cost that would be allowed after this answer.",
        ),
        field(
            "retry_after",
            "a duration such as `60s`, or `null`",
            "",
            "The shortest wait after which the same call could pass; `null` when it passes, or never will.",
        ),
        field(
            "reset_after",
            "a duration such as `60s`, or `null`",
            "",
            "Time until nothing is used any more.",
        ),
        field(
            "delay",
            "a duration such as `500ms`",
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
            "allowed",
            "a whole number such as `50`",
            "",
            "How many of the calls of `repeat` were allowed; only `denied` may stand beside it.",
        ),
        field(
            "denied",
            "a whole number such as `550`",
            "",
            "How many of the calls of `repeat` were denied; only `allowed` may stand beside it.",
        ),
    ],
};

/// All tables, in the order of the reference.
pub(crate) static TABLES: [&Table; 12] = [
    &DOCUMENT,
    &DEFAULTS,
    &RULE,
    &OVERRIDE,
    &REFILL,
    &PREFIX,
    &BAN,
    &SCENARIOS,
    &TEST,
    &STEP,
    &DESCRIPTOR,
    &EXPECT,
];
