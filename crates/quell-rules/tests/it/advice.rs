//! The knob, attacked: whatever a file says of `max_over_admission` and its like, it is refused with what to write
//! instead, or explained with advice that is accepted when it is followed, and has the effect that it names.

use std::collections::BTreeMap;

use quell_core::descriptor::Query;
use quell_rules::{RuleExplanation, explain, parse_str};

/// Each with what its size is called, to follow advice about it.
const LIMITS: [(&str, &[&str]); 20] = [
    ("rate: 1000/s", &["burst"]),
    ("rate: 10/s", &["burst"]),
    ("rate: 100/s, burst: 2000", &["burst"]),
    ("rate: 1/day, burst: 3", &["burst"]),
    ("rate: 1000000/s", &["burst"]),
    ("refill: {amount: 100, every: 100ms}", &["burst"]),
    ("refill: {amount: 10, every: 1s}, burst: 50", &["burst"]),
    ("refill: {amount: 7, every: 1s}", &["burst"]),
    (
        "algorithm: leaky_bucket, rate: 500/s, burst: 100, delay_after: 100",
        &["burst", "delay_after"],
    ),
    (
        "algorithm: leaky_bucket, rate: 5/s, burst: 8, delay_after: 8",
        &["burst", "delay_after"],
    ),
    ("algorithm: leaky_bucket, rate: 5/s, burst: 80", &[]),
    ("algorithm: fixed_window, limit: 1000/s", &["limit"]),
    ("algorithm: fixed_window, limit: 5/min", &["limit"]),
    (
        "algorithm: fixed_window, limit: 1000/day, align: calendar, time_zone: UTC",
        &["limit"],
    ),
    ("algorithm: sliding_window, limit: 900/s", &["limit"]),
    ("algorithm: sliding_log, limit: 12/s", &["limit"]),
    ("algorithm: concurrency, max: 50, lease: 30s", &[]),
    ("rate: 1000/s, debt: true", &[]),
    ("rate: 1000/s, warm_up: 10s", &[]),
    ("rate: 1000/s, ban: {after: 3, within: 1m, for: 1m}", &[]),
];

const BOUNDS: [&str; 9] = [
    "0",
    "0%",
    "1%",
    "0.001%",
    "100%",
    "4",
    "500",
    "1000000",
    "5000000000",
];

/// Fields beside the limit and the bound.
const DEFAULTS: [&[(&str, &str)]; 7] = [
    &[],
    &[("latency_budget", "500us")],
    &[("rung", "strict")],
    &[("rung", "leased")],
    &[("cluster_size", "4")],
    &[("cluster_size", "auto")],
    &[("cluster_size", "4"), ("latency_budget", "500us")],
];
const RULES: [&[(&str, &str)]; 14] = [
    &[],
    &[("cost", "3")],
    &[("cost", "400")],
    &[("rung", "strict")],
    &[("rung", "leased")],
    &[("rung", "synced")],
    &[("rung", "local")],
    &[("rung", "shares")],
    &[("latency_budget", "500us")],
    &[("latency_budget", "500us"), ("rung", "synced")],
    &[("latency_budget", "500us"), ("rung", "local")],
    &[("latency_budget", "5ms")],
    &[("cluster_size", "3")],
    &[("rung", "strict"), ("cost", "3")],
];

/// All 35,280 files take a minute. A prime, so that those which are left out change with every field.
const EVERY: usize = 11;

type Fields = BTreeMap<String, String>;

/// A file with one rule.
#[derive(Clone, Debug)]
struct File {
    defaults: Fields,
    rule: Fields,
    limit: String,
    size: &'static [&'static str],
}

impl File {
    fn text(&self) -> String {
        let line = |fields: &Fields| {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name}: {value}"));
            fields.collect::<Vec<_>>().join(", ")
        };
        let separator = if self.rule.is_empty() { "" } else { ", " };
        format!(
            "{{domain: d, defaults: {{{}}}, rules: [{{name: r, {}{separator}{}}}]}}",
            line(&self.defaults),
            self.limit,
            line(&self.rule)
        )
    }

    fn load(&self) -> Result<RuleExplanation, String> {
        let loaded = parse_str("f", &self.text());
        let loaded = loaded.map_err(|problems| {
            let problems = problems.iter().map(ToString::to_string);
            problems.collect::<Vec<_>>().join("\n")
        })?;
        let explained = explain(&loaded.domains, &Query::new("d"));
        Ok(explained.descriptors[0].rules[0].clone())
    }

    fn set(&mut self, field: &str, value: &str) {
        self.rule.insert(field.to_owned(), value.to_owned());
    }

    /// Sets the bound in the place where the file states it.
    fn set_bound(&mut self, over: &str) {
        let is_own = self.rule.contains_key("max_over_admission");
        let fields = if is_own {
            &mut self.rule
        } else {
            &mut self.defaults
        };
        fields.insert("max_over_admission".to_owned(), over.to_owned());
    }

    /// A larger limit.
    fn enlarge(&mut self, least: u64) {
        for size in self.size {
            let mut fields: Vec<_> = self.limit.split(", ").map(str::to_owned).collect();
            let place = fields
                .iter()
                .position(|field| field.starts_with(&format!("{size}: ")));
            let old = place.map(|place| fields.remove(place));
            // A window keeps its length.
            let per = old.as_deref().and_then(|old| old.split_once('/'));
            let per = per.map_or(String::new(), |(_, per)| format!("/{per}"));
            fields.push(format!("{size}: {least}{per}"));
            self.limit = fields.join(", ");
        }
    }
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after)?.0)
}

fn number(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// A file that follows advice.
struct Followed<'a> {
    advice: &'a str,
    before: &'a RuleExplanation,
    next: File,
}

impl Followed<'_> {
    fn set(&mut self, field: &str, value: &str) {
        self.next.set(field, value);
    }

    fn says(&self) -> RuleExplanation {
        let after = self.next.load();
        after.unwrap_or_else(|why| panic!("{self}\nrefused: {why}"))
    }

    /// The number that follows these words in the advice.
    fn number(&self, before: &str) -> Option<u64> {
        number(self.advice, before)
    }

    fn nodes(&mut self) {
        let nodes = self.number("nodes: ").unwrap();
        self.set("nodes", &nodes.to_string());
    }

    /// Without the strict rung.
    fn not_strict(&mut self) {
        for fields in [&mut self.next.rule, &mut self.next.defaults] {
            fields.retain(|field, value| (&**field, &**value) != ("rung", "strict"));
        }
    }

    fn without(&mut self, fields: &[&str]) {
        self.next
            .rule
            .retain(|field, _| !fields.contains(&&**field));
    }

    /// "a max_over_admission of at least N with nodes: N, and a burst or limit of at least N (and no rung: strict)"
    fn enlarged(mut self, least: u64) -> &'static str {
        self.set("max_over_admission", &least.to_string());
        self.nodes();
        if let Some((_, size)) = self.advice.split_once(", and a ") {
            self.next.enlarge(number(size, " of at least ").unwrap());
        }
        if self.advice.contains("(and no rung: strict)") {
            self.not_strict();
        }
        let after = self.says();
        let is_in_memory = ["leased", "synced", "shares"].contains(&after.rung);
        assert!(
            is_in_memory && after.why_strict.is_none(),
            "{self}\n{after:?}"
        );
        "enlarged"
    }

    /// "rung: leased with max_over_admission: N and nodes: N asks the store at most N times a second"
    fn leased_instead_of_strict(mut self, over: &str) -> &'static str {
        self.set("max_over_admission", over);
        self.nodes();
        match self.advice.starts_with("rung: leased") {
            true => self.set("rung", "leased"),
            false => self.not_strict(),
        }
        let after = self.says();
        let expected = (
            "leased",
            self.number("at most "),
            self.number("exceed the limit by "),
        );
        let got = (after.rung, after.store_calls_per_second, after.bound);
        assert_eq!(got, expected, "{self}");
        "leased instead of strict"
    }

    /// "max_over_admission: N asks the store at most N times"
    fn larger_bound(mut self, over: &str) -> &'static str {
        self.next.set_bound(over);
        let (after, before) = (self.says(), self.before);
        assert_eq!(after.rung, before.rung, "{self}");
        let is_burst = self
            .advice
            .ends_with("while a full burst or window is used up");
        let calls = |rule: &RuleExplanation| match is_burst {
            true => rule.store_calls_from_rest,
            false => rule.store_calls_per_second,
        };
        assert_eq!(calls(&after), self.number("at most "), "{self}");
        assert!(calls(&after) < calls(before), "{self}");
        match is_burst {
            true => "a larger bound for a burst",
            false => "a larger bound",
        }
    }

    /// "a larger max_over_admission changes nothing"
    fn no_larger_bound(mut self) -> &'static str {
        let said = [&self.next.rule, &self.next.defaults];
        let now = said
            .iter()
            .find_map(|fields| fields.get("max_over_admission"));
        let larger = match now.unwrap() {
            percent if percent.ends_with('%') => "100%".to_owned(),
            units => (units.parse::<u64>().unwrap() * 2).to_string(),
        };
        self.next.set_bound(&larger);
        let calls =
            |rule: &RuleExplanation| (rule.store_calls_per_second, rule.store_calls_from_rest);
        assert_eq!(calls(&self.says()), calls(self.before), "{self}");
        "no larger bound"
    }

    /// "rung: leased, with no latency_budget below 1ms in the rule, asks at most N times"
    fn leased_instead_of_synced(mut self) -> &'static str {
        self.without(&["latency_budget"]);
        self.set("rung", "leased");
        let after = self.says();
        let calls = after.store_calls_per_second;
        assert_eq!(
            (after.rung, calls),
            ("leased", self.number("at most ")),
            "{self}"
        );
        assert!(calls < self.before.store_calls_per_second, "{self}");
        "leased instead of synced"
    }

    /// "rung: strict, without max_over_admission and latency_budget in the rule"
    fn strict(mut self, without: &str) -> &'static str {
        let fields = without.replace(" and ", ", ");
        self.without(&fields.split(", ").collect::<Vec<_>>());
        self.set("rung", "strict");
        let after = self.says();
        assert_eq!(
            (after.rung, after.why_strict.clone()),
            ("strict", None),
            "{self}"
        );
        "strict"
    }
}

impl std::fmt::Display for Followed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{}", self.advice, self.next.text())
    }
}

/// Result of following one piece of advice.
fn follow(file: &File, before: &RuleExplanation, advice: &str) -> &'static str {
    let followed = Followed {
        advice,
        before,
        next: file.clone(),
    };
    if advice.starts_with("nothing does: ") {
        "nothing"
    } else if let Some(least) = number(advice, "a max_over_admission of at least ") {
        followed.enlarged(least)
    } else if let Some(over) = between(advice, "max_over_admission: ", " and nodes: ") {
        followed.leased_instead_of_strict(over)
    } else if let Some(over) = between(advice, "max_over_admission: ", " asks the store at most") {
        followed.larger_bound(over)
    } else if advice.contains("larger max_over_admission")
        || advice.contains("as large as it may be")
    {
        followed.no_larger_bound()
    } else if advice.starts_with("rung: leased, with no latency_budget") {
        followed.leased_instead_of_synced()
    } else if let Some(without) = between(advice, "rung: strict, without ", " in the rule, ") {
        followed.strict(without)
    } else {
        panic!("unknown advice: {advice}")
    }
}

fn fields(fields: &[(&str, &str)]) -> Fields {
    let fields = fields.iter();
    let fields = fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    fields.collect()
}

/// One file of [`EVERY`].
fn files() -> impl Iterator<Item = File> {
    let limits = LIMITS.into_iter();
    let files = limits.flat_map(|limit| BOUNDS.into_iter().map(move |over| (limit, over)));
    let files = files.flat_map(|file| DEFAULTS.into_iter().map(move |defaults| (file, defaults)));
    let files = files.flat_map(|file| RULES.into_iter().map(move |rule| (file, rule)));
    let files = files.flat_map(|file| [true, false].map(|is_own| (file, is_own)));
    let files = files.step_by(EVERY);
    files.map(|(((((limit, size), over), defaults), rule), is_own)| {
        let mut file = File {
            defaults: fields(defaults),
            rule: fields(rule),
            limit: limit.to_owned(),
            size,
        };
        file.defaults
            .extend(fields(&[("nodes", "2"), ("on_failure", "deny")]));
        let knob = fields(&[("max_over_admission", over)]);
        match is_own {
            true => file.rule.extend(knob),
            false => file.defaults.extend(knob),
        }
        file
    })
}

#[test]
fn a_file_is_refused_with_what_to_write_or_its_advice_can_be_followed() {
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    for file in files() {
        match file.load() {
            Err(why) => {
                let says_what = |why: &str| why.contains("write ") || why.contains("leave ");
                assert!(why.lines().all(says_what), "{}\n{why}", file.text());
                *outcomes.entry("refused").or_default() += 1;
            }
            Ok(before) => {
                for advice in before.to_change.as_deref().unwrap().split("; ") {
                    let outcome = follow(&file, &before, advice);
                    *outcomes.entry(outcome).or_default() += 1;
                }
            }
        }
    }
    println!("{outcomes:?}");
    assert_eq!(outcomes.len(), 9, "{outcomes:?}");
}
