//! `quell fleet demo`: it ends by itself or on Ctrl-C, and leaves nothing behind.

use crate::files::Folder;
use crate::process::{quell, run, until, wait};

#[test]
fn it_shows_six_scenes_and_ends() {
    let shown = run(&mut quell(&["fleet", "demo", "--for", "12s"])).expect_success();
    let scenes: Vec<&str> = shown.split("\n-- ").collect();
    assert_eq!(scenes.len(), 7, "{shown}");
    // Demand moves to one node after the other. How soon parts of the limit follow depends on the disk.
    for (scene, busy) in scenes[1..].iter().zip([2, 3, 1]) {
        let mut admitted = 0;
        for line in scene.lines().skip(1).filter(|line| !line.is_empty()) {
            // The calls that each node is offered and admits, and the sum of those admitted.
            let numbers = line.split_whitespace().skip(1);
            let numbers: Vec<u64> = numbers.map_while(|word| word.parse().ok()).collect();
            assert!(numbers.len() >= 7, "{line}");
            let (own, all) = (numbers[busy - 1], numbers[..3].iter().sum::<u64>());
            assert!(
                2 * own > all,
                "node {busy} is offered {own} of {all}\n{shown}"
            );
            admitted += numbers[3 + busy - 1];
        }
        assert!(admitted > 0, "node {busy}\n{shown}");
    }
    for line in [
        "\n-- node 2 is asked for most of it",
        "\n-- node 3 dies without a word",
        "\n-- the coordinator is gone",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let last = shown.lines().last().unwrap();
    let words: Vec<&str> = last.split(' ').collect();
    assert_eq!(
        words[..4],
        ["all", "nodes", "together", "admitted"],
        "{last}"
    );
    let (admitted, most) = (words[4].parse::<u64>().unwrap(), words.last().unwrap());
    assert!(admitted > 0 && admitted <= most.parse().unwrap(), "{last}");
}

#[test]
fn a_signal_ends_it() {
    let folder = Folder::new();
    let (out, temporary) = (folder.path("out"), folder.path("temporary"));
    std::fs::create_dir(&temporary).unwrap();
    let mut demo = quell(&["fleet", "demo"]);
    demo.env("TMPDIR", &temporary);
    let mut child = demo
        .stdout(std::fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let text = || std::fs::read_to_string(&out).unwrap();
    until("it begins", || text().contains("-- node 2").then_some(()));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1);
    let pid = child.id().to_string();
    run(std::process::Command::new("kill").args(["-INT", &pid])).expect_success();
    assert!(wait(&mut child, "the demo").success());
    assert!(text().contains("all nodes together admitted"), "{}", text());
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn lengths_and_rates_have_bounds() {
    for (flag, value) in [
        ("--for", "5s"),
        ("--for", "2h"),
        ("--rate", "99"),
        ("--rate", "x"),
    ] {
        let told = run(&mut quell(&["fleet", "demo", flag, value]));
        assert_eq!(told.code(), Some(2), "{told:?}");
    }
}
