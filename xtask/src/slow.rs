//! Slow pages: runs the commands of pages that take too long for the tests, in the smallest size that they have.
//! A record tells which blocks ran as they are written now; a block that changed is run again before it lands.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{install, programs, repository, terminal};

/// From the repository's root; this tool writes it, and it is committed.
const RECORD: &str = "xtask/slow.record";

/// Blocks of pages: the page, and how the block begins.
const BLOCKS: [(&str, &str); 8] = [
    ("README.md", "cargo install"),
    ("docs/benchmarks.md", "sudo apt-get install redis"),
    ("docs/benchmarks.md", "sudo apt-get install valgrind"),
    ("docs/benchmarks.md", "valgrind"),
    ("docs/chaos.md", "cargo xtask chaos  "),
    ("docs/chaos.md", "cargo xtask chaos --seed 0"),
    (
        "docs/fleet-protocol.md",
        "cargo run --release --manifest-path bench",
    ),
    ("fuzz/README.md", "cargo install cargo-fuzz"),
];

/// What makes them small, keeps them in the target folder and lets them fail: a text of a command, and what is
/// written instead.
const SMALL: [(&str, &str); 20] = [
    (
        "--path crates/quell-cli",
        "--path crates/quell-cli --root target/slow",
    ),
    (
        "-- decide",
        "-- decide --keys 1000 --decisions 1000 --runs 1 --passes 1",
    ),
    ("-- rules", "-- rules --rules 100 --calls 1000 --runs 1"),
    ("-- tail", "-- tail --keys 10000 --runs 1"),
    ("-- memory", "-- memory --keys 1000 --runs 1"),
    ("-- server", "-- server --seconds 1 --runs 1 --pipelines 1"),
    ("-- redis", "-- redis --calls 1000 --keys 1000 --runs 1"),
    ("-- leased", "-- leased --seconds 1 --keys 1000 --runs 1"),
    ("-- cluster", "-- cluster --calls 10000 --runs 1"),
    ("-- overload", "-- overload --seconds 1 --runs 1"),
    ("-- fleet", "-- fleet --runs 1"),
    ("-- coordinator", "-- coordinator --seconds 2 --runs 1"),
    ("-- headline", "-- headline --runs 1"),
    ("--seconds 3600", "--seconds 1"),
    ("| head -60", ">/dev/null"),
    ("--rounds 20", "--rounds 1"),
    ("--rounds 288", "--rounds 1"),
    (
        "cargo-fuzz --locked",
        "cargo-fuzz --locked --root target/slow",
    ),
    ("-max_total_time=60", "-max_total_time=5"),
    ("|| break", "|| exit 1"),
];

/// Root needs no `sudo`, and packages are installed without a question.
const SHELL: &str = "set -euo pipefail\n\
    PATH=\"$PWD/target/slow/bin:$PATH\"\n\
    sudo() { if [ \"$(id -u)\" = 0 ]; then \"$@\"; else command sudo \"$@\"; fi; }\n\
    apt-get() { command apt-get -y \"$@\"; }\n";

/// Runs the blocks one after the other; those whose page or text has `word` in it.
///
/// # Errors
///
/// When a page has no such block, or the first command that fails.
pub(crate) fn run(word: &str) -> Result<()> {
    let root = repository::root()?;
    install::run()?;
    let blocks = blocks(&root)?;
    let mut record = record(&root);
    let known: BTreeSet<String> = blocks.iter().map(line).collect();
    record.retain(|line| known.contains(line));
    let chosen: Vec<_> = { blocks.iter() }
        .filter(|(page, block)| page.contains(word) || block.contains(word))
        .collect();
    if chosen.is_empty() {
        bail!("no slow block has {word:?} in it or in the name of its page");
    }
    for chosen @ (page, block) in chosen {
        let block = small(block);
        terminal::line(&format!("\n==> {page}\n{block}"));
        let script = format!("{SHELL}set -x\n{block}");
        programs::run(
            Command::new("bash")
                .args(["-c", &script])
                .current_dir(&root),
        )
        .with_context(|| format!("{page} has a command that fails"))?;
        record.insert(line(chosen));
        let text: String = record.iter().map(|line| format!("{line}\n")).collect();
        fs::write(root.join(RECORD), text).with_context(|| format!("cannot write {RECORD}"))?;
    }
    Ok(())
}

/// The lines of the blocks that ran.
fn record(root: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(root.join(RECORD)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The line of a block in the record: its page, how it begins, and the start of its hash.
fn line((page, block): &(&str, String)) -> String {
    let hash = Sha256::digest(block);
    let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let first = block.lines().next().unwrap_or_default();
    format!("{page} {hash} {first}")
}

/// The blocks, with their pages.
fn blocks(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut all = Vec::new();
    for (page, begins) in BLOCKS {
        let text = fs::read_to_string(root.join(page)).with_context(|| page)?;
        let found = text
            .split("\n```sh\n")
            .skip(1)
            .filter(|block| block.starts_with(begins));
        let found = found.filter_map(|block| Some(block.split_once("\n```")?.0));
        let before = all.len();
        all.extend(found.map(|block| (page, block.to_owned())));
        if all.len() == before {
            bail!("{page} has no block that begins with `{begins}`");
        }
    }
    Ok(all)
}

/// A block in its smallest size.
fn small(block: &str) -> String {
    let line = |line: &str| {
        let command = line.split("  #").next().unwrap_or_default();
        let mut command = command.trim_end().to_owned();
        for (text, smaller) in SMALL {
            if command.ends_with(text) || command.contains(&format!("{text} ")) {
                command = command.replace(text, smaller);
            }
        }
        command
    };
    block.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_ran_as_it_is() {
        let root = repository::root().unwrap();
        let ran = record(&root);
        let blocks: BTreeSet<String> = blocks(&root).unwrap().iter().map(line).collect();
        assert_eq!(
            ran, blocks,
            "`cargo xtask slow` runs them and writes {RECORD}: commit it"
        );
    }

    #[test]
    fn pages_have_the_blocks_and_each_is_made_small() {
        let root = repository::root().unwrap();
        let blocks = blocks(&root).unwrap();
        for (text, smaller) in SMALL {
            let is_used = { blocks.iter() }.any(|(_, block)| small(block).contains(smaller));
            assert!(is_used, "no slow block has `{text}`");
        }
        let tests = fs::read_to_string(root.join("crates/quell-cli/tests/it/pages.rs")).unwrap();
        let tests: String = tests.split_whitespace().collect();
        for (page, begins) in BLOCKS {
            let row = format!("(\"{page}\",\"{}\",SLOW", begins.replace(' ', ""));
            assert!(tests.contains(&row), "{page} {begins}");
        }
    }
}
