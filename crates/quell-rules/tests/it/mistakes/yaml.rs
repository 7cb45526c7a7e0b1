//! Text that is not YAML, or YAML that rules do not use.

use super::Mistake;

pub(super) const TABLE: &[Mistake] = &[
    (
        "domain: d\nrules:\n\t- name: r\n",
        &["3:1: a tab in the indentation: write spaces"],
    ),
    (
        "domain: d\nrules:\n  - name: r\n\trate: 1/s\n",
        &["4:1: a tab in the indentation: write spaces"],
    ),
    (
        "domain: [d\n",
        &["1:9: domain[0]: a list is not closed: write `]`"],
    ),
    (
        "domain: {a: b\n",
        &["1:9: domain: a map is not closed: write `}`"],
    ),
    (
        "domain: 'd\n",
        &["1:9: domain: a quote is not closed: write the closing quote"],
    ),
    (
        "domain: d\n domain: e\n",
        &[
            "2:8: the indentation or a `:` is wrong: write fields of one map at one column, and values that contain `: ` in quotes",
        ],
    ),
    (
        "domain: d\ndomain: e\nrules: []\n",
        &["2:1: `domain` is set at 1:1 already: write it once"],
    ),
    // In a map with many keys.
    (
        "domain: d\nrules:\n  - { name: r, rate: 1/s, match: {\n      e01: x, e02: x, e03: x, e04: x, e05: x, e06: x, \
         e07: x, e08: x, e09: x,\n      e10: x, e11: x, e12: x, e13: x, e14: x, e15: x, e16: x, e17: x, e18: x,\n      \
         e01: y, e17: y } }\n",
        &[
            "6:7: rules[0].match: `e01` is set at 4:7 already: write it once",
            "6:15: rules[0].match: `e17` is set at 5:63 already: write it once",
        ],
    ),
    (
        "domain: d\nrules:\n  - { name: r, match: { path: *api }, rate: 1/s }\n",
        &[
            r#"3:31: rules[0].match.path: `*api` is an alias without an anchor: for a glob write it in quotes, "*api""#,
        ],
    ),
    (
        "domain: d\nrules:\n  - { name: r, match: { path: * }, rate: 1/s }\n",
        &[
            r#"3:31: rules[0]: a value that begins with `*` or `&` is an alias or an anchor: write it in quotes, such as "*""#,
        ],
    ),
    (
        "domain: d\nrules:\n  - { name: r, match: { path: @api }, rate: 1/s }\n",
        &["3:31: rules[0]: a value cannot begin with this character: write it in quotes"],
    ),
    (
        "domain: !!str d\n",
        &["1:9: domain: tags have no meaning here: leave `!!str` out"],
    ),
    (
        "domain: !env D\n",
        &["1:9: domain: tags have no meaning here: leave `!env` out"],
    ),
    (
        "domain: d\nrules: &a [*a]\n",
        &["2:12: rules[0]: an alias inside what it stands for: write the value out"],
    ),
    (
        "[a]: b\ndomain: d\n",
        &["1:1: a list in place of a name: write a name"],
    ),
    (
        "? \n: b\ndomain: d\n",
        &["2:1: nothing in place of a name: write a name"],
    ),
    (
        "\"\": b\ndomain: d\n",
        &["1:1: a single value in place of a name: write a name"],
    ),
    (
        "domain: d\nrules:\n  - name: r: x\n",
        &[
            "3:12: rules[0]: the indentation or a `:` is wrong: write fields of one map at one column, and values that contain `: ` in quotes",
        ],
    ),
    (
        "domain: d\nrules:\n  - {name: r rate: 1/s}\n",
        &["3:18: rules[0]: between two fields: write `,`, or `}` at the end"],
    ),
    (
        "domain: d\nrules:\n  - {name: r, match: {a: [x y}, rate: 1/s}\n",
        &["3:26: rules[0]: a list is closed by `}`: write `]`"],
    ),
    (
        "domain: d\nrules:\n  - {name: a, rate: 1/s\n---\ndomain: e\nrules:\n  - {name: b, rat: 1/s}\n",
        &[
            "3:5: rules[0]: a map is not closed: write `}`",
            "7:15: rules[0].rat: unknown field `rat`, did you mean `rate`?",
        ],
    ),
    (
        "just text\n",
        &["1:1: a single value does not belong here: write a document with `domain:` and `rules:`"],
    ),
    (
        "- a\n- b\n",
        &["1:1: a list does not belong here: write a document with `domain:` and `rules:`"],
    ),
    (
        "domain: d\nrules:\n  - name: r\n    rate: 1/s\n   burst: 2\n",
        &[
            "5:4: rules: the indentation or a `:` is wrong: write fields of one map at one column, and values that contain `: ` in quotes",
        ],
    ),
    (
        "domain: d\nrules:\n  - name: r\n    rate 5/s\n    per: [x]\n",
        &["4:5: rules[0]: a `:` is missing after `rate`: write `rate: 5/s`"],
    ),
    (
        "domain: d\nrules:\n  - name: r\n    rate 5/s # fast\n",
        &["4:5: rules[0]: a `:` is missing after `rate`: write `rate: 5/s`"],
    ),
    (
        "domain d\nrules:\n  - {name: r, rate: 1/s}\n",
        &["1:1: a `:` is missing after `domain`: write `domain: d`"],
    ),
    (
        "just text\nand more: x\n",
        &[
            "2:9: the indentation or a `:` is wrong: write fields of one map at one column, and values that contain `: ` in quotes",
        ],
    ),
    (
        "domain: d\nrules\n  - {name: r, rate: 1/s}\n",
        &["2:1: a `:` is missing after `rules`: write `rules:`"],
    ),
    (
        "domain: d\nrules:\n  - {name: r, zzz: 1, yyy: 2, rate: 1/s}\n",
        &[
            "3:15: rules[0].zzz: unknown field `zzz`: leave it out, {rule}",
            "3:23: rules[0].yyy: unknown field `yyy`: leave it out",
        ],
    ),
    (
        "domain: d\n<<: {rules: []}\n",
        &[r#"2:1: ["<<"]: merge keys are not YAML 1.2: write the fields out"#],
    ),
];
