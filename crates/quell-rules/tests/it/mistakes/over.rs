//! Overrides; each input follows `name: r`.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "rate: 1/s, overrides: {when: {a: b}, rate: 2/s}",
        &[
            "3:38: rules[0].overrides: a map does not belong here: write a list such as `[{when: {tenant: acme}, rate: 1000/s}]`",
        ],
    ),
    (
        "rate: 1/s, overrides: [{rate: 2/s}]",
        &["3:39: rules[0].overrides[0]: the override has no `when`: write `when: {ENTRY: VALUE}`"],
    ),
    (
        "rate: 1/s, overrides: [{when: {}, rate: 2/s}]",
        &[
            "3:46: rules[0].overrides[0].when: it would match everything: write at least one entry, or change the rule",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}}]",
        &[
            "3:39: rules[0].overrides[0]: it changes nothing: write a field of the limit, `unlimited: true` or `refuse: true`",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, unlimited: true, rate: 2/s}]",
        &[
            "3:65: rules[0].overrides[0].unlimited: unlimited beside the fields of a limit: write one or the other",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, unlimited: false}]",
        &["3:65: rules[0].overrides[0].unlimited: a limit is the default: leave `unlimited` out"],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, rate: 2/s}, {when: {a: b}, rate: 3/s}]",
        &[
            "3:73: rules[0].overrides[1].when: the same as in overrides[0], which wins: leave one out",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, limit: 2/s}]",
        &[
            "3:61: rules[0].overrides[0].limit: `limit` belongs to fixed_window, sliding_window, sliding_log, and this is a token_bucket, the default: write `rate` in its place, or `algorithm: sliding_window`",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, cost: 2}]",
        &["3:54: rules[0].overrides[0].cost: unknown field `cost`: leave it out, {override}"],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, name: x}]",
        &["3:54: rules[0].overrides[0].name: unknown field `name`: leave it out, {override}"],
    ),
    (
        "rate: 10/s, initial: 7, overrides: [{when: {a: b}, burst: 5}]",
        &["3:52: rules[0].overrides[0]: initial is above burst: write at most the burst"],
    ),
    (
        "algorithm: fixed_window, limit: 5/min, overrides: [{when: {a: b}, algorithm: sliding_log, limit: 5}]",
        &[
            "3:113: rules[0].overrides[0].limit: a sliding_log needs a window: write `limit: 5/min`, or `window: 1m` beside it",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, algorithm: sliding_window, limit: 2/s}]",
        &[
            "3:39: rules[0].overrides[0]: these numbers are for the keys of the rule, which count as token_bucket and not as sliding_window: write the same algorithm, or another rule",
        ],
    ),
    (
        "unlimited: true, overrides: [{when: {a: b}, rate: 5/s}, {when: {a: c}, algorithm: leaky_bucket, rate: 2/s}]",
        &[
            "3:72: rules[0].overrides[1]: these numbers are for the keys of the rule, which count as token_bucket and not as leaky_bucket: write the same algorithm, or another rule",
        ],
    ),
    (
        "algorithm: fixed_window, limit: 5/day, overrides: [{when: {a: b}, align: calendar}]",
        &[
            "3:67: rules[0].overrides[0]: these numbers are for the keys of the rule, whose windows have `align: first_request`: write the same, or another rule",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, refuse: true, burst: 2}]",
        &[
            "3:62: rules[0].overrides[0].refuse: refuse beside the fields of a limit or `unlimited`: write one or the other",
        ],
    ),
    (
        "rate: 1/s, plan: {entry: plan}",
        &[
            "3:41: rules[0].plan.entry: the document has no plans: write `plans: {NAME: {RULE: {rate: 10/s}}}`, or leave this out",
        ],
    ),
    (
        "rate: 1/s, plan: gold",
        &[
            "3:33: rules[0].plan: a single value does not belong here: write a map such as `{entry: plan}`",
        ],
    ),
    (
        "unlimited: true, overrides: [{when: {a: b}, burst: 5}]",
        &[
            "3:45: rules[0].overrides[0]: a token_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `100/s`",
        ],
    ),
    (
        "rate: 1/s, overrides: [{when: {a: b}, rate: 0/s}, {when: {a: c}, ban: {after: 0, for: 1m}}]",
        &[
            "3:60: rules[0].overrides[0].rate: a rate of 0 admits nothing: write a count of at least 1",
            "3:94: rules[0].overrides[1].ban.after: a ban's after must lie in 1..=1000",
        ],
    ),
    (
        "rat: 1/s, overrides: [{when: {a: b}, burst: 0}, {when: {a: c}, rate: 1}]",
        &[
            "3:16: rules[0].rat: unknown field `rat`, did you mean `rate`?",
            "3:85: rules[0].overrides[1].rate: `1` has no period: write `1/s`, `1/min` or the like",
        ],
    ),
    (
        "rate: 0/s, overrides: [{when: {a: b}, burst: 2}]",
        &["3:22: rules[0].rate: a rate of 0 admits nothing: write a count of at least 1"],
    ),
    (
        "algorithm: fixed_window, limit: 5, window: 2h, overrides: [{when: {a: b}, align: calendar}]",
        &[
            "3:75: rules[0].overrides[0]: a calendar window is one unit of the calendar: write s, min, h, day, week, month or year, or leave `align: calendar` out",
        ],
    ),
];
