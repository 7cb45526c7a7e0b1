//! The command line: what it prints, and how it exits.

use std::process::{Command, Output};

use quell_shares::mistake::Mistake;
use quell_sim::schedules::SCHEDULES;

fn simulate(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell-sim"));
    command.args(arguments.split(' ')).output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_list_names_every_mistake_and_schedule_once() {
    let text = printed(&simulate("--list"));
    assert_eq!(text.lines().count(), Mistake::ALL.len() + SCHEDULES.len());
    for name in Mistake::ALL.iter().map(|mistake| mistake.name()) {
        assert!(text.contains(&format!("mutate {name}: ")), "{name}");
    }
    for schedule in SCHEDULES {
        assert!(text.contains(&format!("schedule {}: ", schedule.name)));
    }
}

#[test]
fn a_broken_promise_exits_with_1_and_a_wrong_name_with_2() {
    let mistake = simulate("--mutate forget-ledger --seeds 2 --schedule leader-dies");
    assert_eq!(mistake.status.code(), Some(1));
    assert!(printed(&mistake).contains("promises broken in 2 runs"));
    let trace = simulate("--mutate forget-ledger --seed 2 --schedule leader-dies --trace");
    assert_eq!(trace.status.code(), Some(1));
    let again = simulate("--mutate forget-ledger --seed 2 --schedule leader-dies --trace");
    assert_eq!(printed(&trace), printed(&again));
    assert_eq!(simulate("--mutate nonsense").status.code(), Some(2));
    assert_eq!(simulate("--schedule nonsense").status.code(), Some(2));
}

#[test]
fn json_says_what_text_says() {
    let kept = simulate("--seeds 5 --schedule leader-dies --json");
    assert_eq!(kept.status.code(), Some(0));
    let value: serde_json::Value = serde_json::from_slice(&kept.stdout).unwrap();
    assert_eq!(value["runs"], 5);
    assert_eq!(value["broken"], 0);
    let broken = simulate("--seeds 5 --schedule leader-dies --mutate forget-ledger --json");
    let value: serde_json::Value = serde_json::from_slice(&broken.stdout).unwrap();
    assert_eq!(value["mistake"], "forget-ledger");
    assert_eq!(value["violations"][0]["schedule"], "leader-dies");
}

#[test]
fn the_picture_in_the_documentation_is_the_one_that_is_drawn() {
    let kept = include_str!("../../../../docs/fleet.svg");
    let again = "run `cargo run --release -p quell-sim -- figure > docs/fleet.svg`";
    assert!(printed(&simulate("figure")) == kept, "{again}");
}

/// The commands of `docs/fleet-protocol.md`, with fewer seeds. The picture has a test of its own.
#[test]
fn the_commands_of_the_page_run() {
    let page = include_str!("../../../../docs/fleet-protocol.md");
    let lines = page.lines();
    let commands =
        lines.filter_map(|line| line.strip_prefix("cargo run --release -p quell-sim -- "));
    let mut run = 0;
    for command in commands.filter(|command| !command.contains('>')) {
        let (words, remark) = command.split_once('#').unwrap_or((command, ""));
        let words = words.replace("--seeds 10000", "--seeds 20");
        let words = words.replace("--mutate", "--seeds 20 --mutate");
        let expected = i32::from(remark.contains("exits with 1"));
        let output = simulate(words.trim());
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{command}: {output:?}"
        );
        assert!(!output.stdout.is_empty(), "{command}");
        run += 1;
    }
    assert_eq!(run, 4);
}
