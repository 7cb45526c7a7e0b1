//! Scenarios: tests for rules, run on a virtual clock against any subject that decides.
//!
//! A file contains rules and tests. [`load`] reads it, [`run`] makes its calls on a [`Subject`] and
//! compares the answers, and the [`Report`] is shown like that of a test runner.

mod answer;
mod expect;
mod read;
mod report;
mod rule_paths;
mod run;
mod step;

pub use answer::ReportedVerdict;
// What a subject is asked.
pub use quell_core::charge::{Action as ByHand, Operation};
pub use quell_core::claim::Claim;
pub use quell_core::end_hold::Ending;
pub use quell_core::hold::HoldId;
pub use quell_core::time::Now;
pub use read::{ScenarioFiles, Scenarios, find, load, parse_for, parse_own, parse_str};
pub use report::{FileReport, Report, StepFailure, TestReport, Unexpected};
pub use run::{Subject, run};
pub use step::{EndAnswer, MAX_REPEAT};

pub use crate::walk::is_called_scenario;
