//! Documents, and everything around rules.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "rules: []\n",
        &["1:1: the document has no domain: write `domain: NAME`"],
    ),
    (
        "defaults: {shadow: true}\n",
        &["1:1: the document has no domain: write `domain: NAME`"],
    ),
    (
        "domain:\nrules: []\n",
        &["1:1: domain: the value is missing: write a name such as `shop`"],
    ),
    (
        "domain: ''\nrules: []\n",
        &["1:9: domain: an empty domain: write a name"],
    ),
    (
        "domain: ' d'\nrules: []\n",
        &[
            "1:9: domain: ` d` begins or ends with a space or has control characters: write a visible domain",
        ],
    ),
    (
        "domain: dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\n",
        &["1:9: domain: a domain of 256 bytes: write at most 255"],
    ),
    (
        "domain: [d]\n",
        &["1:9: domain: a list does not belong here: write a name such as `shop`"],
    ),
    (
        "domian: d\n",
        &["1:1: domian: unknown field `domian`, did you mean `domain`?"],
    ),
    (
        "domain: d\nrules: {name: r}\n",
        &["2:8: rules: a map does not belong here: write a list of rules"],
    ),
    (
        "domain: d\nrules: r\n",
        &["2:8: rules: a single value does not belong here: write a list of rules"],
    ),
    (
        "domain: d\nrules: [r]\n",
        &[
            "2:9: rules[0]: a single value does not belong here: write a rule such as `{name: login, rate: 5/min}`",
        ],
    ),
    (
        "domain: d\nrules: [null]\n",
        &["2:9: rules[0]: the value is missing: write a rule such as `{name: login, rate: 5/min}`"],
    ),
    (
        "domain: d\ndefaults: {shadow: yes}\n",
        &["2:20: defaults.shadow: `yes` is neither true nor false: write `true`"],
    ),
    (
        "domain: d\ndefaults: {rung: strict, max_over_admission: 101%}\n",
        &[
            "2:46: defaults.max_over_admission: `101%` is not a percentage from 0.0001% to 100%: write 0, a \
            number of units such as 500, or a percentage such as 1%",
        ],
    ),
    (
        "domain: d\ndefaults: {burst: 2}\n",
        &[
            "2:12: defaults.burst: unknown field `burst`: leave it out, a map of defaults has shadow, rung, max_over_admission, latency_budget, on_failure, nodes, cluster_size, group",
        ],
    ),
    (
        "domain: d\ndefaults:\n",
        &[
            "2:1: defaults: the value is missing: write a map such as `{shadow: true}`, or leave it out",
        ],
    ),
    (
        "domain: d\ncolocate: ''\n",
        &["2:11: colocate: an empty entry name: write a name"],
    ),
    (
        "domain: d\ncolocate: tenant\nrules:\n  - { name: a, per: [user], rate: 1/s }\n  - { name: b, per: [{ tenant: { v4: 24 } }], rate: 1/s }\n",
        &[
            "4:5: rules[0]: the domain has `colocate: tenant`, and keys of rule `a` belong to no `tenant`: write `tenant` in its `per`, or put the rule into another domain",
            "5:5: rules[1]: the domain has `colocate: tenant`, and rule `b` cuts `tenant` to a prefix: write `tenant` without one, or put the rule into another domain",
        ],
    ),
    (
        "rules: []\ndomain: d\ncolocate: tenant\n---\nrules: []\ndomain: d\n---\nrules: []\ndomain: e\n---\nrules: []\ndomain: e\ncolocate: tenant\n",
        &[
            "6:9: domain: the same domain has `colocate: tenant` at f:2:9: write that here too",
            "12:9: domain: the same domain has no `colocate` at f:9:9: write it there too, or leave it out here",
        ],
    ),
    (
        "domain: d\ntests: []\n",
        &["2:1: tests: this is a file of tests: run it with `quell rules test`"],
    ),
    (
        "domain: d\nlimits: []\n",
        &["2:1: limits: unknown field `limits`, did you mean `rules`?"],
    ),
    (
        "domain: d\nrules:\n  - {name: a, rate: 1/s}\n  - {name: b, rate: 1/s}\n  - {name: a, rate: 2/s}\n",
        &["5:12: rules[2].name: domain `d` has a rule `a` already, at f:3:12: write another name"],
    ),
    (
        "domain: d\nrules: [{name: a, rate: 1/s}]\n---\ndomain: e\nrules: [{name: a, rate: 1/s}]\n---\ndomain: d\nrules: [{name: a, rate: 1/s}]\n",
        &["8:16: rules[0].name: domain `d` has a rule `a` already, at f:2:16: write another name"],
    ),
    (
        "domain: d\nrules:\n  - { rate: 1/s }\n",
        &["3:5: rules[0]: the rule has no name: write `name: NAME`"],
    ),
    (
        "domain: d\nrules:\n  - { name: '', rate: 1/s }\n",
        &["3:13: rules[0].name: an empty name: write a name"],
    ),
    (
        "domain: d\nrules:\n  - { name: , rate: 1/s }\n",
        &["3:7: rules[0].name: the value is missing: write a name such as `login-per-ip`"],
    ),
    (
        "domain: d\nrules:\n  - { name: \"a\\nb\", rate: 1/s }\n",
        &[
            "3:13: rules[0].name: `a\\u{a}b` begins or ends with a space or has control characters: write a visible name",
        ],
    ),
    (
        "domain: d\nrules:\n  - { nam: r, rate: 1/s }\n",
        &["3:7: rules[0].nam: unknown field `nam`, did you mean `name`?"],
    ),
];
