//! Summary: the outcomes of many runs, for people and for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::run::Outcome;
use crate::schedules::Schedule;
use crate::stories;

/// Number of violations that are listed; the others are only counted.
const NAMED: usize = 20;

/// Sums over runs.
#[derive(Debug, Default)]
pub struct Summary {
    runs: u64,
    random: u64,
    broken: u64,
    named: Vec<(u64, &'static str, String)>,
    faults: Vec<(&'static str, u64)>,
    utilisation: u64,
    settled: u64,
    steps: u64,
    member_time: u128,
}

/// Nanoseconds in an hour.
const HOUR: u128 = 3_600_000_000_000;

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, outcome: &Outcome, schedule: Option<&Schedule>) {
        self.runs += 1;
        self.steps += outcome.steps;
        self.member_time += u128::from(outcome.member_time);
        if schedule.is_none() {
            self.random += 1;
        }
        if let Some(used) = outcome.utilisation {
            self.settled += 1;
            self.utilisation += used;
        }
        let list = outcome.counts.list();
        if self.faults.is_empty() {
            self.faults = list.to_vec();
        } else {
            for (sum, (_, count)) in self.faults.iter_mut().zip(list) {
                sum.1 += count;
            }
        }
        if let Some(violation) = &outcome.violation {
            self.broken += 1;
            if self.named.len() < NAMED {
                let played = schedule.map_or("random", |schedule| schedule.name);
                let text = format!(
                    "{} at {} ms: {}",
                    violation.promise,
                    violation.at / 1_000_000,
                    violation.text
                );
                self.named.push((outcome.seed, played, text));
            }
        }
    }

    /// Runs so far.
    #[must_use]
    pub const fn runs(&self) -> u64 {
        self.runs
    }

    /// Runs in which a promise was broken.
    #[must_use]
    pub const fn broken(&self) -> u64 {
        self.broken
    }

    /// Members times hours.
    #[must_use]
    pub fn member_hours(&self) -> u64 {
        u64::try_from(self.member_time / HOUR).unwrap_or(u64::MAX)
    }

    /// The mean utilisation at the end of random runs, in thousandths.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        self.utilisation / self.settled.max(1)
    }

    /// Faults that were never injected, although there were random runs.
    #[must_use]
    pub fn never(&self) -> Vec<&'static str> {
        let zero = self.faults.iter().filter(|(_, count)| *count == 0);
        zero.map(|(name, _)| *name).collect()
    }

    /// As text for a person.
    #[must_use]
    pub fn text(&self, took: Duration, stories: bool) -> String {
        let mut text = String::new();
        let w = &mut text;
        // Writing to a string cannot fail.
        let _ = writeln!(
            w,
            "{} runs ({} with random faults), {} member-hours, {} events, {}.{} s",
            self.runs,
            self.random,
            self.member_hours(),
            self.steps,
            took.as_secs(),
            took.subsec_millis() / 100
        );
        let _ = writeln!(w, "promises broken in {} runs", self.broken);
        for (seed, played, violation) in &self.named {
            let _ = writeln!(w, "  seed {seed}, {played}: {violation}");
        }
        if self.broken > 0 {
            let _ = writeln!(
                w,
                "  to see every event, add --trace --seed SEED to the same arguments, and --schedule NAME \
                 where one was played"
            );
        }
        if self.random > 0 {
            let used = self.utilisation();
            let _ = writeln!(
                w,
                "members may use {}.{} % of what they want and the limit allows, when all is quiet",
                used / 10,
                used % 10
            );
        }
        let _ = writeln!(w, "what happened:");
        for (name, count) in &self.faults {
            let _ = writeln!(w, "  {count:>12}  {name}");
        }
        if stories {
            text += &stories::stories().text();
        }
        text
    }

    /// As JSON for a program.
    #[must_use]
    pub fn json(&self, stories: bool) -> String {
        let violation = |(seed, played, text): &(u64, &str, String)| json!({"seed": seed, "schedule": played, "violation": text});
        let faults: Map<String, Value> = self
            .faults
            .iter()
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect();
        let mut object = json!({
            "runs": self.runs,
            "random_runs": self.random,
            "member_hours": self.member_hours(),
            "events": self.steps,
            "broken": self.broken,
            "violations": self.named.iter().map(violation).collect::<Vec<_>>(),
            "utilisation_permille": self.utilisation(),
            "faults": faults,
        });
        if stories {
            object["stories"] = stories::stories().json();
        }
        format!("{object:#}\n")
    }
}
