//! The command line: what it prints, and how it exits.

use std::process::{Command, Output};
use std::time::Duration;

use quell_sim::check::Violation;
use quell_sim::run::run;
use quell_sim::schedules::SCHEDULES;
use quell_sim::setup::{DRIFT, Wish};
use quell_sim::summary::Summary;

fn simulate(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell-sim"));
    command.args(arguments.split(' ')).output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_list_names_every_schedule_once() {
    let text = printed(&simulate("--list"));
    assert_eq!(text.lines().count(), SCHEDULES.len());
    for schedule in SCHEDULES {
        assert!(text.contains(&format!("schedule {}: ", schedule.name)));
    }
}

#[test]
fn a_wrong_name_exits_with_2() {
    assert_eq!(simulate("--schedule nonsense").status.code(), Some(2));
}

#[test]
fn json_says_what_text_says() {
    let kept = simulate("--seeds 5 --schedule leader-dies --json");
    assert_eq!(kept.status.code(), Some(0));
    let value: serde_json::Value = serde_json::from_slice(&kept.stdout).unwrap();
    assert_eq!(value["runs"], 5);
    assert_eq!(value["broken"], 0);
}

#[test]
fn a_broken_promise_is_named_with_its_seed_and_schedule() {
    let wish = Wish {
        seed: 7,
        members: None,
        limits: None,
        seconds: 150,
        drift: DRIFT,
    };
    let schedule = SCHEDULES.iter().find(|one| one.name == "leader-dies");
    let mut outcome = run(wish, schedule, false);
    outcome.violation = Some(Violation {
        at: 3_000_000,
        promise: "S1",
        text: "too much".to_owned(),
    });
    let mut summary = Summary::default();
    summary.add(&outcome, schedule);
    let text = summary.text(Duration::ZERO, false);
    assert!(
        text.contains("promises broken in 1 runs\n  seed 7, leader-dies: S1 at 3 ms: too much\n")
    );
    let value: serde_json::Value = serde_json::from_str(&summary.json(false)).unwrap();
    assert_eq!(value["broken"], 1);
    assert_eq!(value["violations"][0]["schedule"], "leader-dies");
    assert_eq!(value["violations"][0]["violation"], "S1 at 3 ms: too much");
}

#[test]
fn the_picture_in_the_documentation_is_the_one_that_is_drawn() {
    let kept = include_str!("../../../../docs/fleet.svg");
    let again = "run `cargo run --release -p quell-sim -- figure > docs/fleet.svg`";
    assert!(printed(&simulate("figure")) == kept, "{again}");
}

/// The commands of the crate's page, with fewer seeds. The picture has a test of its own.
#[test]
fn the_commands_of_the_page_run() {
    let page = include_str!("../../README.md");
    let lines = page.lines();
    let commands =
        lines.filter_map(|line| line.strip_prefix("cargo run --release -p quell-sim -- "));
    let mut run = 0;
    for command in commands.filter(|command| !command.contains('>')) {
        let words = command.split('#').next().unwrap_or(command);
        let words = words.replace("--seeds 10000", "--seeds 20");
        let output = simulate(words.trim());
        assert_eq!(output.status.code(), Some(0), "{command}: {output:?}");
        assert!(!output.stdout.is_empty(), "{command}");
        run += 1;
    }
    assert_eq!(run, 3);
}
