//! Files of tests.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "",
        &[" the file has no content: write a map with `rules:` and `tests:`"],
    ),
    (
        "# nothing\n",
        &[" the file has no content: write a map with `rules:` and `tests:`"],
    ),
    (
        "x\n",
        &["1:1: a single value does not belong here: write a map with `rules:` and `tests:`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\n",
        &["1:1: no tests: write `tests:` and a list of them"],
    ),
    (
        "tests: []\n",
        &[
            "1:1: no rules to test: write `rules: PATH`, or the document in place",
            "1:8: tests: no tests: write at least one",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: []\n",
        &["2:8: tests: no tests: write at least one"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: {}\n",
        &["2:8: tests: a map does not belong here: write a list of tests"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntest: []\n",
        &["2:1: test: unknown field `test`, did you mean `tests`?"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, steps: []}]\n---\nrules: { domain: d, rules: [{ name: r, rate: 1/s }] }\n",
        &["4:1: no tests: write `tests:` and a list of them"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {delay: {about: 1s}, retry_after: {at_least: 2s, at_most: 1s}}}] }\n",
        &[
            "3:49: tests[0].steps[0].expect.delay: the range is empty: write `{at_least: 50s, at_most: \
            60s}`, one of the two, or `{about: 60s, tolerance: 1s}`",
            "3:75: tests[0].steps[0].expect.retry_after: no wait is in this range: write the shorter one as `at_least`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{steps: []}]\n",
        &["2:9: tests[0]: the test has no name: write `name: NAME`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t}]\n",
        &["2:9: tests[0]: the test has no steps: write `steps:` and a list of them"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, step: []}]\n",
        &["2:19: tests[0].step: unknown field `step`, did you mean `steps`?"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [1]\n",
        &[
            "2:9: tests[0]: a single value does not belong here: write a test such as `{name: NAME, steps: [..]}`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, steps: []}, {name: t, steps: []}]\n",
        &["2:31: tests[1]: the test at line 2 has this name already: write another"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, start: yesterday, steps: []}]\n",
        &[
            "2:26: tests[0].start: `yesterday` is not an instant: write one such as `2026-03-29T00:30:00Z`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, start: 2026-03-29, steps: []}]\n",
        &[
            "2:26: tests[0].start: `2026-03-29` is not an instant: write one such as `2026-03-29T00:30:00Z`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, start: 1969-12-31T23:59:59Z, steps: []}]\n",
        &[
            "2:26: tests[0].start: `1969-12-31T23:59:59Z` is not between 1970 and 2554: write one such as `2026-03-29T00:30:00Z`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests: [{name: t, start: 2555-01-01T00:00:00Z, steps: []}]\n",
        &[
            "2:26: tests[0].start: `2555-01-01T00:00:00Z` is not between 1970 and 2554: write one such as `2026-03-29T00:30:00Z`",
        ],
    ),
    (
        "rules: missing.yaml\ntests: [{name: t, steps: [{at: 0s, domain: d}]}]\n",
        &[
            "1:8: rules: there is no `missing.yaml` beside this file: write a path that leads to rules",
        ],
    ),
    (
        "rules: [1, [2]]\ntests: [{name: t, steps: []}]\n",
        &[
            "1:9: rules[0]: there is no `1` beside this file: write a path that leads to rules",
            "1:12: rules[1]: a list does not belong here: write a path such as `shop.yaml`",
        ],
    ),
    (
        "rules:\ntests: [{name: t, steps: []}]\n",
        &[
            "1:1: rules: the value is missing: write a path such as `shop.yaml`, a list of paths, or a \
            rules document",
        ],
    ),
    (
        "rules: {domain: d, rules: [{name: r, rate: 1}]}\ntests: [{name: t, steps: [{at: 0}]}]\n",
        &[
            "1:44: rules.rules[0].rate: `1` has no period: write `1/s`, `1/min` or the like",
            "2:32: tests[0].steps[0].at: `0` has no unit: write `0s`, `0ms` or `0m`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [1] }\n",
        &[
            "3:24: tests[0].steps[0]: a single value does not belong here: write a step such as `{at: 0s, entries: {path: /login}}`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{}] }\n",
        &["3:24: tests[0].steps[0]: the step has no instant: write `at: 0s`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0}] }\n",
        &["3:29: tests[0].steps[0].at: `0` has no unit: write `0s`, `0ms` or `0m`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: -1s}] }\n",
        &["3:29: tests[0].steps[0].at: `-1s` is negative: write `1s`, or another longer than 0"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{time: 0s}] }\n",
        &["3:25: tests[0].steps[0].time: unknown field `time`, did you mean `at`?"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: ask}] }\n",
        &[
            "3:37: tests[0].steps[0].op: unknown operation `ask`: write one of acquire, peek, reserve, settle, cancel, release, renew, ban, lift, forgive",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: settle, id: a}] }\n",
        &["3:24: tests[0].steps[0]: the real cost is missing: write `actual: UNITS`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: cancel}] }\n",
        &[
            "3:24: tests[0].steps[0]: cancel needs the id of a hold: write `id: NAME`, as in the step that \
            holds it",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: release, id: a, cost: 2}] }\n",
        &["3:59: tests[0].steps[0].cost: `op: release` has no `cost`: leave it out"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: renew, id: a, expect: {outcome: allow}}] }\n",
        &[
            "3:69: tests[0].steps[0].expect.outcome: unknown outcome `allow`: write one of stands, settled, cancelled, released, expired, unknown",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: renew, id: a, actual: 3, expect: {remaining: 1}}] }\n",
        &["3:59: tests[0].steps[0].actual: only `settle` has this field: leave it out"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: peek, hold: 1s}] }\n",
        &[
            "3:49: tests[0].steps[0].hold: it belongs to `op: reserve` or `op: acquire`: leave it out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: reserve, id: a, max_wait: 1s, repeat: 2}] }\n",
        &[
            "3:24: tests[0].steps[0]: one id is held once: leave `id` out, and each call has its own, or write a step for each",
            "3:63: tests[0].steps[0].max_wait: it belongs to `op: acquire`: leave it out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: reserve, hold: 0s}] }\n",
        &[
            "3:52: tests[0].steps[0].hold: a hold must be longer than 0 and at most a day: write its length",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, id: \"a b\"}] }\n",
        &[
            "3:37: tests[0].steps[0].id: it is not a name of a hold: write 1 to 64 printable ASCII characters without spaces",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, failed: true, expect: {outcome: allow}}, {at: 0s, op: renew, id: a, failed: true}] }\n",
        &[
            "3:41: tests[0].steps[0].failed: it belongs to `op: release`: leave it out",
            "3:109: tests[0].steps[1].failed: only `release` has this field: leave it out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, actual: 1, expect: {repeated: true}}] }\n",
        &[
            "3:41: tests[0].steps[0].actual: it belongs to `op: settle`: write `cost` here",
            "3:63: tests[0].steps[0].expect.repeated: only the end of a hold answers this field: leave it \
            out, or write `op: settle`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, cost: 0}] }\n",
        &["3:39: tests[0].steps[0].cost: a cost of 0 charges nothing: write at least 1"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, repeat: 0}] }\n",
        &["3:41: tests[0].steps[0].repeat: no call at all: write at least 1"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, repeat: 1000001}] }\n",
        &[
            "3:41: tests[0].steps[0].repeat: 1000001 calls: write at most 1000000, and several steps",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, every: 1s}] }\n",
        &["3:40: tests[0].steps[0].every: one call is not repeated: write `repeat` as well"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 1000000h, repeat: 1000000, every: 1000000h}] }\n",
        &["3:24: tests[0].steps[0]: it ends after the year 2554: write an earlier instant"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, entries: [a]}] }\n",
        &[
            "3:42: tests[0].steps[0].entries: a list does not belong here: write a map such as `{method: POST, path: /login}`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, entries: {a: }}] }\n",
        &[
            r#"3:43: tests[0].steps[0].entries.a: nothing in place of a value: write one value ("" for an empty one)"#,
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, entries: {a: [b]}}] }\n",
        &[
            r#"3:46: tests[0].steps[0].entries.a: a list in place of a value: write one value ("" for an empty one)"#,
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, descriptors: []}] }\n",
        &[
            "3:46: tests[0].steps[0].descriptors: there is no descriptor: write at least one, which may have no entries",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, descriptors: [{entries: {a: b}, costs: 3}], cost: 3, entries: {}}] }\n",
        &[
            "3:65: tests[0].steps[0].descriptors[0].costs: unknown field `costs`, did you mean `cost`?",
            "3:83: tests[0].steps[0].cost: it belongs into a descriptor here: write it there, or leave `descriptors` out",
            "3:95: tests[0].steps[0].entries: it belongs into a descriptor here: write it there, or leave `descriptors` out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, set_rules: {domain: d, rules: []}, cost: 3}] }\n",
        &[
            "3:74: tests[0].steps[0].cost: a step that sets rules asks nothing: write a step of its own",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, set_rules: {domain: d, rules: [{name: r}]}}] }\n",
        &[
            "3:64: tests[0].steps[0].set_rules.rules[0]: a token_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `100/s`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, set_rules: none.yaml}] }\n",
        &[
            "3:44: tests[0].steps[0].set_rules: there is no `none.yaml` beside this file: write a path that leads to rules",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: allow}] }\n",
        &[
            "3:41: tests[0].steps[0].expect: a single value does not belong here: write a map such as `{outcome: deny, retry_after: 60s}`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {}}] }\n",
        &[
            "3:41: tests[0].steps[0].expect: the step expects nothing: write an expectation such as \
            `{outcome: allow}`, or leave it out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {outcome: denied}}] }\n",
        &[
            "3:51: tests[0].steps[0].expect.outcome: unknown outcome `denied`, did you mean `deny`? write one of allow, deny",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {outcome: deny, retry_after: never}}] }\n",
        &[
            "3:70: tests[0].steps[0].expect.retry_after: a wait without end: write `permanent: true` in its place",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {retry_after: 60}}] }\n",
        &[
            "3:55: tests[0].steps[0].expect.retry_after: `60` has no unit: write `60s`, `60ms` or `60m`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {outcome: null}}] }\n",
        &[
            "3:42: tests[0].steps[0].expect.outcome: the value is missing: write `allow` or `deny`; of an \
            ending `settled`, `cancelled`, `released`, `expired`, `stands` or `unknown`, or leave it out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {remaining: -1}}] }\n",
        &[
            "3:53: tests[0].steps[0].expect.remaining: `-1` is negative: write a whole number such as `1`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, expect: {limit: 1}}] }\n",
        &[
            "3:42: tests[0].steps[0].expect.limit: unknown field `limit`: leave it out, an expectation has outcome, repeated, changed, binding, remaining, retry_after, reset_after, delay, permanent, banned, unmatched, rules, allowed, denied",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, repeat: 3, expect: {allowed: 3, outcome: allow}}] }\n",
        &[
            "3:74: tests[0].steps[0].expect.outcome: counts stand alone: write `allowed` and `denied` only, or what holds for each call",
        ],
    ),
    (
        "rules: {domain: d, rules: []}\ntests: [{name: t, steps: [{at: 0s, domian: e}]}]\n",
        &["2:36: tests[0].steps[0].domian: unknown field `domian`, did you mean `domain`?"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: ban, rule: r}] }\n",
        &["3:24: tests[0].steps[0]: the length of the ban is missing: write `for: 10m`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: ban, for: 0s}] }\n",
        &["3:47: tests[0].steps[0].for: write a duration longer than 0, such as `10m`"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: lift, for: 1m}] }\n",
        &["3:48: tests[0].steps[0].for: only a ban has a length: leave it out"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: forgive, rule: r, cost: 3, repeat: 2}] }\n",
        &[
            "3:61: tests[0].steps[0].cost: `op: forgive` has no `cost`: leave it out",
            "3:72: tests[0].steps[0].repeat: `op: forgive` has no `repeat`: leave it out",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: ban, for: 1m, expect: {outcome: deny}}] }\n",
        &[
            "3:69: tests[0].steps[0].expect.outcome: an operator's step answers `changed` only: ask the \
            rest with `op: peek`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: settle, id: a, actual: 1, for: 1m}] }\n",
        &["3:68: tests[0].steps[0].for: `op: settle` has no `for`: leave it out"],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, rule: r, for: 1m, expect: {changed: 1}}] }\n",
        &[
            "3:39: tests[0].steps[0].rule: it belongs to `op: ban`, `lift` or `forgive`: leave it out",
            "3:47: tests[0].steps[0].for: it belongs to `op: ban`, `lift` or `forgive`: leave it out",
            "3:69: tests[0].steps[0].expect.changed: only an operator's step answers this field: leave it \
            out, or write `op: ban`",
        ],
    ),
    (
        "rules: { domain: d, rules: [{ name: r, per: [remote_address], rate: 1/s }] }\ntests:\n  - { name: t, steps: [{at: 0s, op: ban, rule: r, entries: {remote_address: 10.0.0.300}, for: 1m}] }\n",
        &[
            "3:24: tests[0].steps[0]: `10.0.0.300` is not an address, so no caller has such a key: write one such as 10.0.0.1",
        ],
    ),
];
