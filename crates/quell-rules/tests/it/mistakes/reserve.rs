//! `reserve`; each input follows `name: r`.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "limit: 9/h, algorithm: fixed_window, reserve: true",
        &[
            "3:62: rules[0].reserve: a single value does not belong here: write a map such as `{ttl: 120s}`, or `{}`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {phases: p}",
        &["3:63: rules[0].reserve.phases: unknown field `phases`, did you mean `phase`?"],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {ttl: 0s}",
        &[
            "3:68: rules[0].reserve.ttl: a call takes longer than 0 and at most a day: write 120s or so",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {ttl: 25h}",
        &[
            "3:68: rules[0].reserve.ttl: a call takes longer than 0 and at most a day: write 120s or so",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {phase: reservation}",
        &[
            "3:62: rules[0].reserve: one entry says the phase, another the reservation: write two names",
        ],
    ),
    (
        "limit: 9/h, algorithm: sliding_window, reserve: {}",
        &[
            "3:5: rules[0]: a reservation belongs to the window in which it began, so it needs one: write `algorithm: fixed_window` in a rule with `reserve`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {}, overrides: [{when: {a: b}, algorithm: token_bucket, rate: 1/s}]",
        &[
            "3:78: rules[0].overrides[0]: these numbers are for the keys of the rule, which count as fixed_window and not as token_bucket: write the same algorithm, or another rule",
            "3:78: rules[0].overrides[0]: a reservation belongs to the window in which it began, so it needs one: write `algorithm: fixed_window` in a rule with `reserve`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {}, cost: 1",
        &[
            "3:72: rules[0].cost: `cost` is what every call costs here, whatever its estimate is: leave it out in a rule with `reserve`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {}, max_over_admission: 1%, nodes: 2, on_failure: deny",
        &[
            "3:5: rules[0]: a settlement changes what the store counts: write `rung: strict` in a rule with `reserve`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {}, rung: local",
        &[
            "3:72: rules[0].rung: a settlement changes what the store counts: write `rung: strict` in a rule with `reserve`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {}, per: [tenant, phase]",
        &[
            "3:5: rules[0]: `phase` differs between a reservation and its settlement, which have one key: leave it out of `match`, `per` and `when`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {phase: p}, match: {p: reserve}",
        &[
            "3:5: rules[0]: `p` differs between a reservation and its settlement, which have one key: leave it out of `match`, `per` and `when`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {id: i}, overrides: [{when: {i: x}, limit: 2/h}]",
        &[
            "3:5: rules[0]: `i` differs between a reservation and its settlement, which have one key: leave it out of `match`, `per` and `when`",
        ],
    ),
    (
        "limit: 9/h, algorithm: fixed_window, reserve: {} }\n  - { name: s, limit: 9/h, algorithm: fixed_window, reserve: {ttl: 1m}",
        &[
            "4:62: rules[1].reserve: the rules of a domain reserve by the same entries and as long, and there is another `reserve` at f:3:62: write the same here",
        ],
    ),
];
