//! Runs every target on its corpus, on changed entries of it and on noise: the same inputs each
//! time.

use std::fs;
use std::path::Path;

use fastrand::Rng;

/// Any number would do.
const SEED: u64 = 20_260_329;

/// Tokens that parsers treat specially.
const TOKENS: [&[u8]; 16] = [
    b"\r\n",
    b"\n",
    b" ",
    b": ",
    b"- ",
    b"{",
    b"}",
    b"[",
    b"\"",
    b"%2F",
    b"/../",
    b"$-1",
    b"*2\r\n",
    b"\0",
    b"\xFF",
    b"18446744073709551616",
];

/// Tries each entry of the corpus, and then `count` inputs, one in eight of which is noise.
fn run_seeded(target: &str, count: usize, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let entries = fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    // Inputs that libFuzzer added are named by their hash, and may be missing.
    paths.retain(|path| path.file_name().is_some_and(|name| name.len() != 40));
    assert!(!paths.is_empty(), "{target} has no corpus");
    let corpus: Vec<Vec<u8>> = paths
        .iter()
        .map(|path| fs::read(path).expect("a seed"))
        .collect();
    corpus.iter().for_each(|seed| run(seed));
    let mut rng = Rng::with_seed(SEED);
    for index in 0..count {
        let input = match index % 8 {
            0 => noise(&mut rng, 1_000),
            _ => changed(&mut rng, &corpus),
        };
        run(&input);
    }
}

fn noise(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.usize(..most);
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// An entry of the corpus after up to eight changes.
fn changed(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let any = |rng: &mut Rng| corpus[rng.usize(..corpus.len())].clone();
    let mut input = any(rng);
    for _ in 0..rng.usize(1..=8) {
        let (one, two) = (rng.usize(..=input.len()), rng.usize(..=input.len()));
        let range = one.min(two)..one.max(two);
        match rng.u8(..6) {
            0 => drop(input.drain(range)),
            1 => input = [&input[..range.end], &input[range.start..]].concat(),
            2 => drop(input.splice(one..one, TOKENS[rng.usize(..TOKENS.len())].iter().copied())),
            3 => drop(input.splice(one..one, noise(rng, 8))),
            4 => input = [&input[..one], &any(rng)[..]].concat(),
            _ => {
                if let Some(byte) = input.get_mut(one) {
                    *byte ^= 1 << rng.u8(..8);
                }
            }
        }
        input.truncate(4_096);
    }
    input
}

#[test]
fn certificate() {
    run_seeded("certificate", 20_000, crate::certificate::fuzz);
}

#[test]
fn credentials() {
    run_seeded("credentials", 20_000, crate::credentials::fuzz);
}

#[test]
fn decide() {
    run_seeded("decide", 5_000, crate::decide::fuzz);
}

#[test]
fn http2_frames() {
    run_seeded("http2_frames", 5_000, crate::http2_frames::fuzz);
}

#[test]
fn http_question() {
    run_seeded("http_question", 50_000, crate::http_question::fuzz);
}

#[test]
fn envoy_files() {
    run_seeded("envoy_files", 20_000, crate::envoy_files::fuzz);
}

#[test]
fn envoy_request() {
    run_seeded("envoy_request", 20_000, crate::envoy_request::fuzz);
}

#[test]
fn path() {
    run_seeded("path", 10_000, crate::path::fuzz);
}

#[test]
fn people() {
    run_seeded("people", 50_000, crate::people::fuzz);
}

#[test]
fn query_json() {
    run_seeded("query_json", 10_000, crate::query_json::fuzz);
}

#[test]
fn resp_frames() {
    run_seeded("resp_frames", 10_000, crate::resp_frames::fuzz);
}

#[test]
fn rules_file() {
    run_seeded("rules_file", 1_000, crate::rules_file::fuzz);
}

#[test]
fn scenario_file() {
    run_seeded("scenario_file", 3_000, crate::scenario_file::fuzz);
}

/// The page's command asks the corpus for the names of all targets.
#[test]
fn every_target_has_a_corpus_and_a_row_of_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).expect("a file");
    let manifest = read("Cargo.toml");
    let targets = manifest.split("[[bin]]\nname = \"").skip(1);
    let mut targets: Vec<_> = targets.filter_map(|rest| rest.split('"').next()).collect();
    let page = read("README.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut rows: Vec<_> = rows.filter_map(|rest| rest.split('`').next()).collect();
    let corpora = fs::read_dir(root.join("corpus")).expect("a corpus");
    let corpora = corpora.map(|entry| entry.expect("an entry").file_name());
    let mut corpora: Vec<_> = corpora
        .map(|name| name.into_string().expect("a name"))
        .collect();
    targets.sort_unstable();
    rows.sort_unstable();
    corpora.sort_unstable();
    assert_eq!(targets, rows);
    assert_eq!(targets, corpora);
}
