//! The README's own commands: what a newcomer types is run, and prints what stands there.

use std::process::Command;

use crate::clients::require;
use crate::files::of_repository;
use crate::process::run;
use crate::server::Server;

/// A command of the README and the lines that it says are printed.
#[derive(Debug)]
struct Typed {
    command: String,
    printed: Vec<String>,
}

/// Every line that begins with `$ `, without its remark, and what follows it.
fn typed(readme: &str) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    let mut answers = false;
    for line in readme.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            let command = command.split("   #").next().unwrap_or_default();
            all.push(Typed {
                command: command.trim().to_owned(),
                printed: Vec::new(),
            });
            answers = true;
        } else if line.is_empty() || line.starts_with("```") {
            answers = false;
        } else if let Some(last) = all.last_mut().filter(|_| answers) {
            last.printed.push(line.to_owned());
        }
    }
    all
}

#[test]
fn what_a_newcomer_types_prints_what_the_readme_says() {
    for client in ["sh", "curl", "redis-cli", "ab"] {
        require(client);
    }
    let readme = std::fs::read_to_string(of_repository("README.md")).unwrap();
    let server = Server::start(&["--rules", &of_repository("examples")]);
    let typed = typed(&readme);
    assert!(
        typed.len() >= 3,
        "a quick start has a few commands: {typed:?}"
    );
    for Typed { command, printed } in typed {
        let here = command
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", server.http))
            // Off a terminal it leaves the numbering out.
            .replace("redis-cli -p 6380", &format!("redis-cli --no-raw -p {}", server.resp));
        let mut shell = Command::new("sh");
        let text = run(shell.args(["-c", &here]).env("no_proxy", "*")).expect_success();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), printed.len(), "{here}\n{text}");
        for (line, said) in lines.iter().zip(&printed) {
            if let Some(beginning) = said.strip_suffix("...") {
                assert!(line.starts_with(beginning.trim_end()), "{here}\n{line}");
            } else {
                assert_eq!(line, said, "{here}");
            }
        }
    }
    server.stop();
}
