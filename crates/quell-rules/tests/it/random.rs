//! Any text gives rules or problems, never a panic; and accepted rules can be put into force and
//! explained.

use std::path::Path;

use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::test_runner::RngSeed;
use proptest::{collection, sample};
use quell_core::descriptor::Query;
use quell_core::rule::{LimitIds, RuleSet};
use quell_core::time::Now;
use quell_rules::{LoadedRules, Problem, explain, parse_bytes, scenario};

use crate::subject::Plain;

const SHOP: &str = include_str!("../../../../examples/shop.yaml");
const SHOP_TEST: &str = include_str!("../../../../examples/shop.test.yaml");
const RELOAD: &str = include_str!("../../../../examples/reload.test.yaml");
const CALENDAR: &str = include_str!("../../../../examples/calendar.test.yaml");

/// Pieces that have a meaning in YAML or in rules.
const PIECES: &[&str] = &[
    "\n",
    " ",
    "  ",
    "\t",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "\"",
    "'",
    "#",
    "&a ",
    "*a",
    "!x ",
    "|",
    ">",
    "---",
    "...",
    "%",
    "? ",
    "~",
    "null",
    "true",
    "\\",
    "0",
    "-1",
    "1.5",
    "18446744073709551615",
    "99999999999999999999",
    "/",
    "5/min",
    "1/s",
    "0.000000001/year",
    "10m",
    "1h30m",
    "584y",
    "domain: ",
    "rules: ",
    "- name: ",
    "match: ",
    "per: ",
    "rate: ",
    "burst: ",
    "overrides: ",
    "when: ",
    "ban: ",
    "limit: ",
    "window: ",
    "algorithm: ",
    "sliding_log",
    "fixed_window",
    "align: calendar",
    "time_zone: ",
    "anchor: ",
    "2026-01-31",
    "Europe/Berlin",
    "expect: ",
    "tests: ",
    "steps: ",
    "at: ",
    "repeat: ",
    "1000000",
    "\u{feff}",
    "\u{0}",
    "\u{e9}",
    "\r",
    "<<: ",
];

/// Texts made of such pieces and of anything else.
fn soup() -> impl Strategy<Value = String> {
    let piece = sample::select(PIECES).prop_map(str::to_owned);
    let other = any::<char>().prop_map(String::from);
    let part =
        proptest::strategy::Union::new_weighted(vec![(9, piece.boxed()), (1, other.boxed())]);
    collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

/// A change to a valid text.
#[derive(Clone, Debug)]
enum Change {
    Insert(String),
    Remove(usize),
    Byte(u8),
    Copy(usize),
}

fn change() -> impl Strategy<Value = (usize, Change)> {
    let kinds = proptest::strategy::Union::new(vec![
        sample::select(PIECES)
            .prop_map(|piece| Change::Insert(piece.to_owned()))
            .boxed(),
        (1_usize..30).prop_map(Change::Remove).boxed(),
        any::<u8>().prop_map(Change::Byte).boxed(),
        (1_usize..80).prop_map(Change::Copy).boxed(),
    ]);
    (any::<usize>(), kinds)
}

fn mutated(text: &str, changes: &[(usize, Change)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (place, change) in changes {
        let start = place % (bytes.len() + 1);
        let end = |length: &usize| (start + length).min(bytes.len());
        match change {
            Change::Insert(piece) => drop(bytes.splice(start..start, piece.bytes())),
            Change::Remove(length) => drop(bytes.drain(start..end(length))),
            Change::Byte(byte) => bytes.insert(start, *byte),
            Change::Copy(length) => {
                let copy = bytes[start..end(length)].to_vec();
                bytes.extend(copy);
            }
        }
    }
    bytes
}

/// Every problem names its place and says what to do about it.
fn check_problems(problems: &[Problem]) {
    assert!((1..=quell_rules::MAX_PROBLEMS).contains(&problems.len()));
    for problem in problems {
        let says = [
            "write",
            "leave",
            "run it",
            "save",
            "must",
            "needs",
            "did you mean",
        ];
        assert!(
            says.iter().any(|word| problem.message.contains(word)),
            "{problem}"
        );
        assert!(
            problem.line != Some(0) && problem.column != Some(0),
            "{problem}"
        );
        assert!(!problem.to_string().contains('\n'), "{problem}");
    }
}

/// Accepted rules can be put in force and explained.
fn check_rules(loaded: LoadedRules) {
    let query = Query::new("shop")
        .entry("path", "/api/x")
        .entry("tenant", "acme");
    let explanation = explain(&loaded.domains, &query);
    let rules: usize = loaded.domains.iter().map(|domain| domain.rules.len()).sum();
    let (set, _) = RuleSet::default().reload(loaded.domains, Now::default(), &LimitIds::default());
    assert_eq!(set.all().count(), rules);
    let explained = explanation.descriptors[0].rules.len();
    assert_eq!(explained, set.domain("shop").len());
}

fn check(bytes: &[u8]) {
    match parse_bytes("f", bytes) {
        Ok(loaded) => check_rules(loaded),
        Err(problems) => check_problems(&problems),
    }
}

fn check_scenario(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // A mutated count may ask for a million calls.
    if text.matches("000000").count() > text.matches("1000000").count() {
        return;
    }
    match scenario::parse_str("f", &text, Path::new(EXAMPLES)) {
        Ok(scenarios) => {
            let report = scenario::run(&scenarios, &mut Plain::default());
            assert_eq!(report.tests.len(), scenarios.tests().count());
        }
        Err(problems) => check_problems(&problems),
    }
}

/// Place in which `shop.test.yaml` finds its rules.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn config() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(2),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_soup_is_answered(text in soup()) {
        check(text.as_bytes());
        check_scenario(text.as_bytes());
    }

    #[test]
    fn any_bytes_are_answered(bytes in collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn good_rules_gone_bad_are_answered(changes in collection::vec(change(), 1..4)) {
        check(&mutated(SHOP, &changes));
    }

    #[test]
    fn good_scenarios_gone_bad_are_answered(
        which in 0_usize..3,
        changes in collection::vec(change(), 1..4),
    ) {
        let text = [SHOP_TEST, RELOAD, CALENDAR][which];
        check_scenario(&mutated(text, &changes));
    }
}
