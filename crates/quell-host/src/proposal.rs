//! Proposal: a text of rules that somebody wants to push, what is wrong with it, and what it changes.

use askama::Template;
use quell::store::memory::MemoryStore;
use quell_rules::scenario::{self, FileReport, Scenarios, Subject, TestReport};
use quell_rules::{Problem, RuleChange, RuleChanges, parse_str};

use crate::rule_tests::{OUT_OF_TIME, OnStore, Timed};
use crate::rules_host::RulesHost;

/// Lines of each kind that are shown.
const MAX_LINES: usize = 100;

/// Base to compare a text of rules with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before<'a> {
    /// There is no version yet.
    Nothing,
    /// The text of the newest version.
    Text(&'a str),
    /// The newest version cannot be read.
    Unreadable,
}

/// Effect of a text of rules.
#[derive(Debug, Template)]
#[template(path = "console/check.html")]
pub(crate) struct Proposal {
    /// Reason why it cannot be pushed; as `quell rules check` says.
    problems: Vec<String>,
    warnings: Vec<String>,
    /// A line for each rule that differs from the newest version.
    changes: Vec<String>,
    /// Lines that are left out.
    more: usize,
    /// Results of its tests, if there are some.
    tests: Option<FileReport>,
    /// The changes in a line, for the history.
    pub summary: String,
}

impl Proposal {
    /// Compares `text`, which would be version `number`, with the newest version. Takes as long
    /// as reading both, so not for a thread that answers calls. `host` is the process that has the rules.
    pub(crate) fn new(text: &str, number: u64, newest: Before<'_>, host: &dyn RulesHost) -> Self {
        let mut proposal = Self {
            problems: Vec::new(),
            warnings: Vec::new(),
            changes: Vec::new(),
            more: 0,
            tests: None,
            summary: String::new(),
        };
        let loaded = match parse_str(&format!("version {number}"), text) {
            Ok(loaded) => loaded,
            Err(problems) => {
                proposal.problems = problems.iter().map(Problem::in_text).collect();
                proposal.cut();
                return proposal;
            }
        };
        let of_shared = loaded.undeclared.iter().map(Problem::in_text);
        match host.is_shared() {
            true => proposal.problems.extend(of_shared),
            false => proposal.warnings.extend(of_shared),
        }
        let warnings = loaded.warnings.iter().map(Problem::in_text);
        proposal.warnings.extend(warnings);
        if let Err(reason) = host.check(&loaded.domains) {
            proposal.problems.push(reason);
        }
        let before = match newest {
            Before::Nothing => Some(Vec::new()),
            Before::Text(newest) => parse_str("the newest version", newest)
                .ok()
                .map(|loaded| loaded.domains),
            Before::Unreadable => None,
        };
        let changes = before.map(|before| RuleChanges::between_domains(&before, &loaded.domains));
        proposal.summary = summary(changes.as_ref());
        let rules = changes.iter().flat_map(RuleChanges::rules);
        proposal.changes = rules.map(RuleChange::sentence).collect();
        proposal.cut();
        proposal
    }

    /// Runs the tests that are kept with the rules in `text`, as `quell rules test` does, for as long as `has_time`
    /// says. What is wrong with them is a warning: rules may be pushed that fail a test.
    pub(crate) fn test(&mut self, text: &str, has_time: impl Fn() -> bool) {
        let Some(scenarios) = scenario::parse_own("the tests", text).filter(|_| self.is_sound())
        else {
            return;
        };
        let report = match scenarios {
            Ok(scenarios) => OnStore::new(MemoryStore::new)
                .map(|subject| run_timed(&scenarios, subject, has_time))
                .map_err(|error| vec![error.to_string()]),
            Err(problems) => Err(problems.iter().map(Problem::in_text).collect()),
        };
        match report {
            Ok(report) => self.tests = Some(report),
            Err(reasons) => self.warnings.extend(reasons),
        }
        self.cut();
    }

    /// Leaves out what nobody reads.
    fn cut(&mut self) {
        for lines in [&mut self.problems, &mut self.warnings, &mut self.changes] {
            self.more += lines.len().saturating_sub(MAX_LINES);
            lines.truncate(MAX_LINES);
        }
    }

    /// Reason why it cannot be pushed.
    pub(crate) fn mistakes(&self) -> String {
        self.problems.join("; ")
    }

    /// Returns true if it can be pushed.
    pub(crate) const fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// The changes in a line, for the history; `None` if what stood there cannot be read.
pub(crate) fn summary(changes: Option<&RuleChanges>) -> String {
    match changes {
        None => "unknown, the version before could not be read".to_owned(),
        Some(none) if none.is_none() => "no rule".to_owned(),
        Some(changes) => changes.to_string(),
    }
}

/// Runs tests until they have had their time; those behind are left out.
fn run_timed(
    scenarios: &Scenarios,
    subject: impl Subject,
    has_time: impl Fn() -> bool,
) -> FileReport {
    let mut report = scenario::run(scenarios, &mut Timed { subject, has_time });
    let is_cut = |test: &TestReport| {
        test.error
            .as_deref()
            .is_some_and(|it| it.ends_with(OUT_OF_TIME))
    };
    if let Some(at) = report.tests.iter().position(is_cut) {
        report.tests.truncate(at + 1);
    }
    report
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;

    use quell_core::rule::DomainRules;

    use super::*;
    use crate::candidate::{About, CandidateStatus};
    use crate::history::Change;
    use crate::rules_host::RulesPlace;

    const NEWEST: &str =
        "domain: shop\nrules: [{ name: login, algorithm: sliding_log, limit: 5/min }]";

    /// A process that shares a store, or does not, and can use rules of one domain.
    #[derive(Debug)]
    struct Process {
        is_shared: bool,
    }

    impl RulesHost for Process {
        fn stores(&self) -> Vec<RulesPlace> {
            Vec::new()
        }

        fn paths(&self) -> Vec<PathBuf> {
            Vec::new()
        }

        fn is_shared(&self) -> bool {
            self.is_shared
        }

        fn check(&self, domains: &[DomainRules]) -> Result<(), String> {
            match domains {
                [_] => Ok(()),
                _ => Err("two domains".to_owned()),
            }
        }

        fn note(&self, _: Change) {}

        fn start_candidate(&self, _: About) -> Result<(), String> {
            Err("this process decides no calls".to_owned())
        }

        fn stop_candidate(&self) -> Option<About> {
            None
        }

        fn candidate(&self) -> Option<CandidateStatus> {
            None
        }

        fn candidate_command(&self) -> &'static str {
            "quell candidate"
        }
    }

    const ALONE: &Process = &Process { is_shared: false };

    /// Whoever writes an endless test waits for it no longer than it takes to say so.
    #[test]
    fn tests_of_a_page_end_when_they_have_had_their_time() {
        let test = "{ name: long, steps: [{ at: 0s, repeat: 1000000, expect: { allowed: 5 } }] }";
        let text = format!(
            "{NEWEST}\n---\ntests: [{test}, {}]",
            test.replace("long", "next")
        );
        let mut proposal = Proposal::new(&text, 8, Before::Text(NEWEST), ALONE);
        let left = Cell::new(1_000);
        proposal.test(&text, || left.replace(left.get() - 1) > 0);
        let report = proposal.tests.as_ref().unwrap();
        let [test] = &report.tests[..] else {
            panic!("{report:?}");
        };
        assert!((900..1_000).contains(&test.calls), "{test:?}");
        assert!(
            test.error
                .as_ref()
                .unwrap()
                .contains("quell rules test FILE"),
            "{test:?}"
        );
        assert!(!report.is_ok() && proposal.is_sound(), "{proposal:?}");
    }

    #[test]
    fn a_proposal_is_told_in_words_or_refused_with_what_to_write() {
        let raised = NEWEST.replace("5/min", "9/min");
        let proposal = Proposal::new(&raised, 8, Before::Text(NEWEST), ALONE);
        assert!(
            proposal.is_sound() && !proposal.warnings.is_empty(),
            "{proposal:?}"
        );
        let words = "shop/login: sliding_log 5/min becomes 9/min";
        assert_eq!(proposal.changes, [words]);
        assert_eq!(proposal.summary, "1 changed (shop/login)");

        let shared = Proposal::new(
            &raised,
            8,
            Before::Text(NEWEST),
            &Process { is_shared: true },
        );
        assert!(!shared.is_sound(), "no on_failure: {shared:?}");
        let same = Proposal::new(NEWEST, 8, Before::Text(NEWEST), ALONE);
        assert_eq!((&*same.summary, same.changes.len()), ("no rule", 0));
        let first = Proposal::new(NEWEST, 1, Before::Nothing, ALONE);
        assert_eq!(first.summary, "1 added (shop/login)");

        let two = format!("{NEWEST}\n---\n{}", NEWEST.replace("shop", "bank"));
        let two = Proposal::new(&two, 8, Before::Text(NEWEST), ALONE);
        assert_eq!(two.problems, ["two domains"]);
        let wrong = Proposal::new(
            "domain: shop\nrules: [{ nam: x }]",
            8,
            Before::Text(NEWEST),
            ALONE,
        );
        assert!(
            wrong.problems[0].starts_with("line 2, column "),
            "{wrong:?}"
        );
        let broken = Proposal::new(NEWEST, 8, Before::Text("domain: ["), ALONE);
        assert!(broken.is_sound() && broken.summary.starts_with("unknown"));
        let steps = "[{ at: 0s, entries: {}, repeat: 6, expect: { allowed: 5 } }]";
        let tests = format!("{NEWEST}\n---\ntests: [{{ name: login, steps: {steps} }}]");
        let of = |text: &str| {
            let mut tested = Proposal::new(text, 8, Before::Text(NEWEST), ALONE);
            tested.test(text, || true);
            tested
        };
        let tested = of(&tests);
        assert!(tested.is_sound() && tested.tests.unwrap().is_ok());
        assert!(
            !of(&tests.replace("allowed: 5", "allowed: 6"))
                .tests
                .unwrap()
                .is_ok()
        );
        let wrong = of(&tests.replace("steps", "step"));
        assert!(wrong.is_sound() && wrong.tests.is_none());
        assert!(
            wrong.warnings.iter().any(|told| told.contains("step")),
            "{wrong:?}"
        );
        assert!(of(NEWEST).tests.is_none());
        let damaged = Proposal::new(NEWEST, 8, Before::Unreadable, ALONE);
        assert!(damaged.is_sound() && damaged.summary.starts_with("unknown"));
    }
}
