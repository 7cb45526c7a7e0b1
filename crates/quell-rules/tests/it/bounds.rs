//! Hostile files: large, deep, endless, in no known encoding.

use std::fmt::Write;

use quell_rules::{MAX_FILE_BYTES, MAX_PROBLEMS, Problem, parse_bytes, parse_str};

fn told(problems: Result<quell_rules::LoadedRules, Vec<Problem>>) -> Vec<String> {
    problems
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_file_has_a_largest_size() {
    let mut text = String::from("domain: d\nrules: []\n#");
    text.extend(std::iter::repeat_n('x', MAX_FILE_BYTES - text.len()));
    assert!(parse_str("f", &text).is_ok());
    text.push('x');
    let expected = "f: the file is larger than 16 MiB: write the rules in several files, and overrides with the same numbers as one with a list of values, as in `when: {tenant: [a, b]}`";
    assert_eq!(told(parse_str("f", &text)), [expected]);
}

#[test]
fn aliases_do_not_multiply_without_end() {
    let mut text = String::from("domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let alias = format!("*a{}", level - 1);
        let ten = [alias.as_str(); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{ten}]").unwrap();
    }
    let problems = told(parse_str("f", &text));
    let last = problems.last().unwrap();
    assert!(
        last.starts_with("f:7:") || last.starts_with("f:8:"),
        "{last}"
    );
    assert!(
        last.ends_with("more than 1000000 values: write the rules in several files, and overrides with the same numbers as one with a list of values, as in `when: {tenant: [a, b]}`"),
        "{last}"
    );
}

#[test]
fn aliases_do_not_nest_without_end() {
    let mut text = String::from("domain: d\na0: &a0 [x]\n");
    for level in 1..100_000 {
        writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
    }
    let problems = told(parse_str("f", &text));
    assert!(
        problems
            .iter()
            .any(|problem| problem.ends_with("nested too deep: write at most 64 levels"))
    );
}

#[test]
fn values_are_counted_without_aliases_too() {
    let text = format!("domain: d\nx: [{}]\n", "1,".repeat(1_000_001));
    let problems = told(parse_str("f", &text));
    assert_eq!(
        problems,
        [
            "f: more than 1000000 values: write the rules in several files, and overrides with the same numbers as one with a list of values, as in `when: {tenant: [a, b]}`"
        ]
    );
}

#[test]
fn nesting_has_an_end() {
    for open in ["[", "{a: ", "- ", "? "] {
        let text = format!("domain: d\nx:\n  {}", open.repeat(100_000));
        assert!(!told(parse_str("f", &text)).is_empty(), "{open}");
    }
}

#[test]
fn other_encodings_are_refused_where_they_begin() {
    let mut bytes = b"domain: d\n# caf\xc3\xa9\nrules: # ".to_vec();
    bytes.extend_from_slice(b"caf\xe9\n");
    let expected = "f:3:13: this byte is not UTF-8: save the file as UTF-8";
    assert_eq!(told(parse_bytes("f", &bytes)), [expected]);
    let utf16: Vec<u8> = "domain: d"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert!(!told(parse_bytes("f", &utf16)).is_empty());
}

#[test]
fn line_ends_and_byte_order_marks_do_not_move_positions() {
    for (text, place) in [
        ("domain: d\nrules:\n  - { name: r, rate: 1 }\n", "f:3:22: "),
        (
            "domain: d\r\nrules:\r\n  - { name: r, rate: 1 }\r\n",
            "f:3:22: ",
        ),
        (
            "\u{feff}domain: d\nrules:\n  - { name: r, rate: 1 }\n",
            "f:3:22: ",
        ),
        (
            "domain: d\nrules:\n  - { name: \u{e9}\u{1f600}, rate: 1 }\n",
            "f:3:23: ",
        ),
        ("\u{feff}domain: d\nrule: 1\n", "f:2:1: "),
        ("\u{feff}domian: d\n", "f:1:1: "),
    ] {
        let problems = told(parse_str("f", text));
        assert!(problems[0].starts_with(place), "{text:?}: {problems:?}");
    }
}

#[test]
fn mistakes_are_told_together_and_not_without_end() {
    let mut text = String::from("domain: d\nrules:\n");
    for index in 0..250 {
        writeln!(text, "  - {{ name: r{index}, rate: 1 }}").unwrap();
    }
    let problems = told(parse_str("f", &text));
    assert_eq!(problems.len(), MAX_PROBLEMS);
    assert_eq!(
        problems[0],
        "f:3:23: rules[0].rate: `1` has no period: write `1/s`, `1/min` or the like"
    );
    assert_eq!(
        problems[99],
        "f:102:24: rules[99].rate: `1` has no period: write `1/s`, `1/min` or the like (and more, not shown)"
    );
}

#[test]
fn many_broken_documents_end() {
    let text = "a: [\n---\n".repeat(10_000);
    assert_eq!(told(parse_str("f", &text)).len(), MAX_PROBLEMS);
}

#[test]
fn a_large_file_of_rules_is_read() {
    let mut text = String::from("domain: d\nrules:\n");
    for index in 0..5_000 {
        writeln!(
            text,
            "  - {{ name: r{index}, match: {{ path: /p{index} }}, per: [user], rate: {}/s }}",
            index + 1
        )
        .unwrap();
    }
    let loaded = parse_str("f", &text).unwrap();
    assert_eq!(loaded.domains[0].rules.len(), 5_000);
}

#[test]
fn long_words_are_shortened_in_messages() {
    let long = "x".repeat(100_000);
    for text in [
        format!("domain: d\n{long}: 1\n"),
        format!("domain: d\nrules: [{{ name: r, rate: {long} }}]"),
        format!("domain: d\nrules: [{{ name: r, rate: 1/{long} }}]"),
        format!("domain: d\nrules: [{{ name: r, rate: 1/s, burst: {long} }}]"),
        format!("domain: d\nrules: [{{ name: r, algorithm: {long}, rate: 1/s }}]"),
        format!("domain: d\nrules: [{{ name: r, algorithm: fixed_window, time_zone: {long} }}]"),
    ] {
        let problems = parse_str("f", &text).unwrap_err();
        assert!(problems[0].to_string().len() < 500, "{}", problems[0]);
    }
}

#[test]
fn a_million_mistakes_take_no_longer_than_a_hundred() {
    let unknown: String = (0..50_000)
        .map(|index| format!("nmae{index}: 1, "))
        .collect();
    let zones = "  - { name: r, algorithm: fixed_window, limit: 1/day, time_zone: Europe/Berln }\n";
    for text in [
        format!("domain: d\nrules: [{{ {unknown} }}]"),
        format!("domain: d\nrules:\n{}", zones.repeat(10_000)),
    ] {
        let problems = told(parse_str("f", &text));
        assert_eq!(problems.len(), MAX_PROBLEMS);
        assert!(
            problems[99].ends_with(" (and more, not shown)"),
            "{}",
            problems[99]
        );
    }
}
