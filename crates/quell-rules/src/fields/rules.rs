//! The fields of a rules file.

use super::{Field, Table, field, later};
use crate::kind::{BUCKETS, Kind, PERMITS, RATES, WINDOWS};

pub(crate) static DOCUMENT: Table = Table {
    name: "a document",
    fields: &[&[
        field(
            "domain",
            "a name such as `shop`",
            "needed",
            "Queries name it, and different domains never share a key. Several documents may say the same domain: their rules follow one another.",
        ),
        field(
            "rules",
            "a list of rules",
            "needed; `[]` for none",
            "The rules, in the order in which they are shown and ties are broken.",
        ),
        field(
            "defaults",
            "a map such as `{shadow: true}`",
            "",
            "What holds for the rules of this document unless they say otherwise.",
        ),
        field(
            "colocate",
            "the name of an entry such as `tenant`",
            "keys spread one by one",
            "On a Redis Cluster, keys with the same value of this entry lie in one slot, so limits on them are charged in one step, and have one line of those who wait. Every rule of the domain that limits has it in its `per`, whole.",
        ),
    ]],
};

pub(crate) static DEFAULTS: Table = Table {
    name: "a map of defaults",
    fields: &[&[
        field(
            "shadow",
            "`true` or `false`",
            "`false`",
            "Whether rules are in shadow that do not say `shadow` themselves.",
        ),
        field(
            "on_failure",
            ON_FAILURE,
            "needed if servers share a store",
            "What rules answer that do not say `on_failure` themselves while the store does not.",
        ),
        field(
            "nodes",
            "a whole number such as `2`",
            "needed with `on_failure: share`",
            "How many servers share the limits of rules that do not say `nodes` themselves.",
        ),
        later("max_over_admission"),
        later("rung"),
    ]],
};

const ON_FAILURE: &str = "`share`, `deny` or `allow`";

const MATCH: &str = "a map such as `{method: POST, path: \"/api/*\"}`";

/// The fields of a limit, which rules and overrides have.
const LIMIT: [Field; 22] = [
    field("algorithm", "one of the algorithms, such as `token_bucket`", "`token_bucket`", "How the limit counts.").again("the rule's", "Another than the rule's takes nothing over from the rule but its ban."),
    field("rate", "a rate such as `100/s`", "needed, or `refill`", "Units per period: `COUNT/PERIOD`.").of(BUCKETS).again("the rule's", "As in a rule. Takes the place of the rule's `refill` as well."),
    field("burst", "a whole number such as `200`", "the rate's count, at least 1", "The largest cost admitted at one instant from rest.").of(BUCKETS).again("what the rule says; if it says none, the rate's count", "As in a rule."),
    field("refill", "a map such as `{amount: 100, every: 1s}`", "continuous", "Units come in whole batches. It implies `rate`.").of(&[Kind::TokenBucket]).again("the rule's", "As in a rule. Takes the place of the rule's `rate` as well."),
    field("initial", "a whole number such as `0`", "the burst", "Units that are there when the rule comes into force.").of(&[Kind::TokenBucket]),
    field("delay_after", "a whole number such as `2`, or `burst`", "`0`", "Units that may wait before a call that is not delayed; `burst`: never delay, only refuse.").of(&[Kind::LeakyBucket]),
    field("limit", "a limit such as `5/min`, or a whole number beside `window`", "needed", "Units per window; `5/min` says the window as well.").of(WINDOWS).again("the rule's", "As in a rule; a whole number alone keeps the rule's window."),
    field("window", "a duration such as `1m`, or `month`", "needed unless `limit` says it", "The window's length: a duration, or a unit as in a rate.").of(WINDOWS),
    field("align", "`first_request` or `calendar`", "`first_request`", "Where windows lie: from the first request, or on the calendar.").of(&[Kind::FixedWindow]),
    field("time_zone", "a time zone such as `Europe/Berlin`", "`UTC`", "Whose calendar it is; only with `align: calendar`.").of(&[Kind::FixedWindow]),
    field("segments", "a whole number from 2 to 3600", "`10`", "Into how many parts the window is cut: a charge counts at most one of them too long.").of(&[Kind::SlidingWindow]),
    field("max_entries", "a whole number from 1 to 100000", "`10000`", "The longest log of a key. A limit above it is loaded as `sliding_window`, with a warning.").of(&[Kind::SlidingLog]),
    field("debt", "`true` or `false`", "`false`", "A cost above what is stored is granted at once and on credit, and who comes next waits it off: the contract of Guava's RateLimiter.").of(&[Kind::TokenBucket]),
    field("warm_up", "a duration such as `10s`", "none", "Begins slowly after rest and takes so long, a day at most, to get to its rate; on credit as with `debt`, without a burst: Guava's RateLimiter with a warm-up period.").of(&[Kind::TokenBucket]),
    field("cold_factor", "a whole number from 2 to 1000", "`3`", "How many times as long the first interval after rest is as those of the rate; only with `warm_up`.").of(&[Kind::TokenBucket]),
    field("max", "a whole number such as `4`", "needed, or `adaptive`", "How many permits may be held at a time.").of(PERMITS),
    field("adaptive", "a map such as `{min: 2, max: 50}`", "none", "How many permits may be held is learned from how long calls take, between these bounds; in place of `max`, without `queue`. With `--store` by all servers together, and `max` at most 500.").of(PERMITS).again("the rule's", "As in a rule; it takes the place of `max` and `queue`, as `max` takes its."),
    field("queue", "a whole number such as `2`", "`0`", "How many more are let in with a delay, which grows with how long calls take.").of(PERMITS),
    field("lease", "a duration such as `30s`", "`1m`", "After how long, a day at most, a permit comes back that nobody released or renewed.").of(PERMITS),
    field("unit_delay", "a duration such as `100ms`", "`0`", "How long a call is taken to last until the first is released; only with `queue`.").of(PERMITS),
    field("on_expiry", "`charge` or `release`", "`charge`", "What becomes of a reservation that nobody settles in its time: it stays charged as estimated, or is given back.").of(RATES),
    field("ban", "a map such as `{after: 3, within: 10m, for: [1m, 10m]}`", "none", "Refuses every call of a key that was refused too often."),
];

/// The same in an override.
static LIMIT_AGAIN: [Field; 22] = in_override(LIMIT);

const fn in_override(mut fields: [Field; 22]) -> [Field; 22] {
    let mut rest: &mut [Field] = &mut fields;
    while let [field, others @ ..] = rest {
        (field.default, field.about) = field.in_override;
        rest = others;
    }
    fields
}

pub(crate) static RULE: Table = Table {
    name: "a rule",
    fields: &[
        &[
            field(
                "name",
                "a name such as `login-per-ip`",
                "needed",
                "Unique within the domain. A reload knows a rule by it.",
            ),
            field(
                "match",
                MATCH,
                "every query",
                "What a descriptor must have: entry and value, or a list of values one of which must match. `*` is any run of characters, `/` included; `10.0.0.0/8` is a network. A `path` is read [in its normal spelling](gateways.md#spellings-of-a-path), and `/api/*` matches `/api` too; a `host` in small letters and without its port; a `remote_address` in any of its spellings. All entries must match.",
            ),
            field(
                "per",
                "a list such as `[tenant]` or `[{remote_address: {v4: 32, v6: 64}}]`",
                "one key for all",
                "The entries whose values tell keys apart. Addresses are cut to a prefix where that is said; of `remote_address` 32 bits count of an IPv4 address and 64 of an IPv6 address unless said.",
            ),
            field(
                "on_missing",
                "`skip` or `shared_key`",
                "`skip`",
                "What to do with a descriptor that lacks an entry of `per`: the rule does not apply, or those that lack it and agree in the rest share one key.",
            ),
        ],
        &LIMIT,
        &[
            field(
                "unlimited",
                "`true`",
                "",
                "The rule adds no limit of its own, only its overrides do.",
            ),
            field(
                "overrides",
                "a list such as `[{when: {tenant: acme}, rate: 1000/s}]`",
                "none",
                "Other limits for some; the first whose `when` matches wins.",
            ),
            field(
                "cost",
                "a whole number such as `1`",
                "the descriptor's cost",
                "What every call costs here, whatever it says itself.",
            ),
            field(
                "shadow",
                "`true` or `false`",
                "that of `defaults`",
                "Evaluated and reported, but never refuses.",
            ),
            field(
                "on_failure",
                ON_FAILURE,
                "that of `defaults`",
                "What is answered while the store that servers share does not: each server goes on with its share of the limit (`limit / nodes`; rates exactly, counts rounded down), everybody is refused, or everybody is allowed. The answer says that it is degraded. Without `--store` it means nothing.",
            ),
            field(
                "nodes",
                "a whole number such as `2`",
                "that of `defaults`",
                "How many servers share the limit; with `on_failure: share`.",
            ),
            later("body"),
            later("max_over_admission"),
            later("rung"),
            later("status"),
        ],
    ],
};

pub(crate) static OVERRIDE: Table = Table {
    name: "an override",
    fields: &[
        &[
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
        ],
        &LIMIT_AGAIN,
    ],
};

pub(crate) static ADAPTIVE: Table = Table {
    name: "an adaptive maximum",
    fields: &[&[
        field(
            "min",
            "a whole number such as `2`",
            "needed",
            "Where the ceiling begins and below which it never goes: at least what one call costs.",
        ),
        field(
            "max",
            "a whole number such as `50`",
            "needed",
            "Above which it never goes, 10000 at most.",
        ),
    ]],
};

pub(crate) static REFILL: Table = Table {
    name: "a refill",
    fields: &[&[
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
    ]],
};

pub(crate) static PREFIX: Table = Table {
    name: "a prefix",
    fields: &[&[
        field(
            "v4",
            "a whole number from 0 to 32",
            "`32`",
            "How many leading bits of an IPv4 address count.",
        ),
        field(
            "v6",
            "a whole number from 0 to 128",
            "`64`",
            "How many leading bits of an IPv6 address count; `128` takes each address by itself, of which a caller has as many as it likes.",
        ),
    ]],
};

pub(crate) static BAN: Table = Table {
    name: "a ban",
    fields: &[&[
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
    ]],
};
