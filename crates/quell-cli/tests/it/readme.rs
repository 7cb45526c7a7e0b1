//! The commands of the README and of `docs/coming-from.md`: each is run, and must print what the
//! page says.

use std::process::Command;

use crate::clients::require;
use crate::files::of_repository;
use crate::process::run;
use crate::server::Server;

/// A command of a page, and the output that the page shows.
#[derive(Debug)]
struct Typed {
    command: String,
    printed: Vec<String>,
}

/// A page and at least how many commands it has.
const PAGES: [(&str, usize); 2] = [("README.md", 3), ("docs/coming-from.md", 2)];

/// Every line that begins with `$ `, without its remark, and what follows it.
fn typed(page: &str) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    let mut answers = false;
    for line in page.lines() {
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
fn what_a_newcomer_types_prints_what_the_page_says() {
    for client in ["sh", "curl", "redis-cli", "ab"] {
        require(client);
    }
    for (page, least) in PAGES {
        let text = std::fs::read_to_string(of_repository(page)).unwrap();
        let typed = typed(&text);
        assert!(typed.len() >= least, "{page} has a few: {typed:?}");
        let server = Server::start(&["--rules", &of_repository("examples")]);
        for command in &typed {
            run_and_compare(command, &server);
        }
        server.stop();
    }
}

fn run_and_compare(Typed { command, printed }: &Typed, server: &Server) {
    let here = command
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", server.http))
        // redis-cli leaves the numbering out when its output is not a terminal.
        .replace(
            "redis-cli -p 6380",
            &format!("redis-cli --no-raw -p {}", server.resp),
        );
    let mut shell = Command::new("sh");
    let text = run(shell.args(["-c", &here]).env("no_proxy", "*")).expect_success();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), printed.len(), "{here}\n{text}");
    for (line, said) in lines.iter().zip(printed) {
        if let Some(beginning) = said.strip_suffix("...") {
            assert!(line.starts_with(beginning.trim_end()), "{here}\n{line}");
        } else {
            assert_eq!(line, said, "{here}");
        }
    }
}
