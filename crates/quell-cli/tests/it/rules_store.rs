//! Rules in a store: pushed, pulled, set and rolled back from a shell, and followed by servers.

use std::process::Command;

use quell_testkit::redis::Redis;
use serde_json::Value;

use crate::files::Folder;
use crate::process::{Run, quell, run};

mod etcd;
mod follow;
mod migrated;
mod shell;

/// A file with everything that an editor could lose.
const SHOP: &str = "# the shop's limits
domain: shop
rules:
  # who logs in
  - name: login   # by address
    per: [user]
    algorithm: fixed_window
    limit: 5/min # a lot
  - { name: search, rate: 100/s }
";

/// An empty store, and the commands for it.
struct Shelf {
    redis: Redis,
    folder: Folder,
}

impl Shelf {
    fn new() -> Self {
        Self {
            redis: Redis::start(&[]),
            folder: Folder::new(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = quell(&["rules"]);
        command
            .args(words)
            .env("QUELL_RULES_STORE", self.redis.url());
        command.env("USER", "ann");
        command
    }

    fn run(&self, words: &[&str]) -> Run {
        run(&mut self.command(words))
    }

    fn good(&self, words: &[&str]) -> String {
        self.run(words).expect_success()
    }

    /// The standard error of a command that fails.
    fn bad(&self, words: &[&str], code: i32) -> String {
        let run = self.run(words);
        assert_eq!(run.code(), Some(code), "{run:?}");
        run.stderr
    }

    fn json(&self, words: &[&str]) -> Value {
        let run = run(self.command(words).arg("--json"));
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
    }

    fn push(&self, text: &str) -> String {
        self.good(&["push", &self.folder.write("pushed.yaml", text)])
    }

    fn text(&self) -> String {
        self.json(&["pull"])["text"].as_str().unwrap().to_owned()
    }

    fn version(&self) -> u64 {
        self.json(&["history"])["versions"][0]["version"]
            .as_u64()
            .unwrap_or(0)
    }
}
