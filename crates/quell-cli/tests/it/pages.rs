//! Pages: every command on every page of the documentation is run, and prints what the page shows.
//!
//! The blocks of a page run in order, in one shell, in a folder with the repository's examples. Lines
//! that begin with `$ ` must print what follows them. Another block must succeed. A block that begins
//! with a comment `# NAME`, where NAME is a file, is written into that file.
//!
//! A reader pastes the blocks one after the other. So a block that starts a server on a port of an
//! earlier block's server fails, unless the text between them says "stop the server"; and a block
//! finds no file but the examples and those that the page made. Servers are in the background, and the
//! page waits for one before it asks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::clients::{ioredis_eval, redis_py_eval, require};
use crate::files::{Folder, of_repository};
use crate::process::run;
use crate::server::Server;

mod fixtures;

use fixtures::Fixture;
use quell_testkit::port::free_port;

/// Reason why a block is run by no test.
const SLOW: &str = "it takes minutes";

/// Blocks that are not run here: the page, how the block begins, and why.
const NOT_RUN: [(&str, &str, &str); 11] = [
    ("CONTRIBUTING.md", "cargo xtask test", "it runs this test"),
    ("README.md", "cargo install", SLOW),
    ("docs/benchmarks.md", "sudo apt-get install redis", SLOW),
    ("docs/benchmarks.md", "sudo apt-get install valgrind", SLOW),
    ("docs/chaos.md", "cargo xtask chaos  ", SLOW),
    ("docs/chaos.md", "cargo xtask chaos --seed 0", SLOW),
    (
        "docs/operate.md",
        "sudo apt-get install ./target",
        "it would change this machine; `deb::it_is_installed_upgraded_removed_and_purged` does it with dpkg, in a \
         root of its own",
    ),
    (
        "docs/envoy-token-budgets.md",
        "python3 model.py",
        "it needs Envoy, and port 80; `gateways::token_budgets` runs that configuration",
    ),
    ("docs/operate.md", "docker", "there is no Docker here"),
    ("docs/operate.md", "kubectl", "there is no Kubernetes here"),
    ("fuzz/README.md", "cargo install cargo-fuzz", SLOW),
];

/// Blocks that another test reads from their page and runs.
const RUN_ELSEWHERE: [(&str, &str, &str); 2] = [
    (
        "docs/operate.md",
        "sh deploy/debian/package.sh",
        "`deb::it_is_installed_upgraded_removed_and_purged`, of a debug build",
    ),
    (
        "crates/quell-sim/README.md",
        "cargo run --release -p quell-sim",
        "`cli::the_commands_of_the_page_run` of quell-sim, with fewer seeds",
    ),
];

/// A page whose commands are for several machines; `production` runs them.
const OF_MACHINES: &str = "docs/production.md";

/// Ports that pages name; each page gets free ones in their place.
const PORTS: [&str; 12] = [
    "8080",
    "6380",
    "8081",
    "8082",
    "8083",
    "6379",
    "6399",
    "9090",
    "4317",
    "7600",
    "7601",
    fixtures::REDIS_TLS,
];

/// A part of a page.
#[derive(Debug)]
pub(crate) enum Part {
    /// Commands that must succeed.
    Script(String),
    /// A command, and the output that the page shows.
    Shown(String, Vec<String>),
    /// A file, by name.
    File(String, String),
}

/// A fenced block: the text before it, its language and its own text.
pub(crate) fn blocks(page: &str) -> Vec<(&str, &str, &str)> {
    let pieces: Vec<&str> = page.split("\n```").collect();
    let (pairs, _) = pieces.as_chunks::<2>();
    let pairs = pairs.iter().filter_map(|[text, block]| {
        let (language, block) = block.split_once('\n')?;
        Some((*text, language, block))
    });
    pairs.collect()
}

/// Every line that begins with `$ `, without its remark, and what follows it.
pub(crate) fn shown(block: &str) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            let command = command.split("   #").next().unwrap_or_default();
            all.push(Part::Shown(command.trim().to_owned(), Vec::new()));
        } else if !line.is_empty()
            && let Some(Part::Shown(_, printed)) = all.last_mut()
        {
            printed.push(line.to_owned());
        }
    }
    all
}

/// The file that a block is, by the comment in its first line.
fn file_of(block: &str) -> Option<&str> {
    let first = block.lines().next()?;
    let file = first
        .trim_start_matches("//")
        .trim_start_matches('#')
        .trim();
    (file.contains('.') && !file.contains(' ') && first != file).then_some(file)
}

/// Steps of a page, in its order; notes which exceptions were needed.
fn parts(name: &str, page: &str, needed: &mut BTreeSet<usize>) -> Vec<Part> {
    let servers = fixtures::servers(name).into_iter();
    let mut parts: Vec<Part> = servers
        .map(|command| Part::Script(command.to_owned()))
        .collect();
    for (text, language, block) in blocks(page) {
        if text.to_lowercase().contains("stop the server") {
            parts.push(Part::Script("stop_the_server".to_owned()));
        }
        let except = |(page, begins, _): &(&str, &str, &str)| {
            *page == name && block.trim_start().starts_with(begins)
        };
        if let Some(at) = NOT_RUN.iter().chain(&RUN_ELSEWHERE).position(except) {
            let is_first = needed.insert(at);
            assert!(
                is_first,
                "{name}: another block is left out with this one:\n{block}"
            );
        } else if let Some(file) = file_of(block) {
            parts.push(Part::File(file.to_owned(), format!("{block}\n")));
        } else if language != "sh" {
            // Not for a shell: read by people, or by another test.
        } else if block.starts_with("$ ") {
            parts.extend(shown(block));
        } else {
            parts.push(Part::Script(block.to_owned()));
        }
    }
    parts
}

/// Beginnings of commands that run until they are stopped.
const SERVERS: [&str; 2] = ["quell serve ", "quell fleet coordinator "];

/// A block whose servers listen before it goes on: the shell puts them into the background itself.
fn servers_first(block: &str) -> String {
    let block = block.replace("\\\n", "");
    let lines = block.lines().map(|line| {
        let command = line.split("   #").next().unwrap_or_default().trim_end();
        match command.strip_suffix(" &") {
            Some(server) if SERVERS.iter().any(|begins| server.starts_with(begins)) => server,
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Bounds a page that hangs, and measures nothing.
const MAX_SECONDS: &str = "900";

/// Durations of a fleet that fit into a test.
const SHORT: [(&str, &str); 3] = [
    ("QUELL_LEADER_TTL", "2s"),
    ("QUELL_LEASE", "5s"),
    ("QUELL_REPORT", "200ms"),
];

/// Place in which a page is tried: a folder with the files that the page takes for granted, and ports.
struct Place {
    folder: Folder,
    ports: Vec<(&'static str, String)>,
    fixture: Fixture,
}

impl Place {
    fn new(page: &str) -> Self {
        let folder = Folder::new();
        symlink(of_repository("examples"), folder.path("examples")).unwrap();
        std::fs::create_dir(folder.path("running")).unwrap();
        let ports = PORTS.map(|port| (port, free_port().to_string()));
        Self {
            fixture: Fixture::new(page, &folder),
            folder,
            ports: ports.to_vec(),
        }
    }

    fn port(&self, named: &str) -> &str {
        let found = self.ports.iter().find(|(port, _)| *port == named);
        &found.unwrap().1
    }

    /// A text of the page with this place's ports, addresses and paths.
    fn adapt(&self, text: &str) -> String {
        let folder = self.folder.path("");
        let folder = folder.trim_end_matches('/');
        let mut text = text
            .replace("cargo run --release -p quell-cli -- ", "quell ")
            .replace("0.0.0.0:", "127.0.0.1:");
        for (machine, here) in &self.fixture.machines {
            text = text.replace(machine, here);
        }
        for system in ["/run/", "/etc/", "/var/", "/usr/local/"] {
            text = text.replace(&format!(" {system}"), &format!(" {folder}{system}"));
            text = text.replace(&format!(":{system}"), &format!(":{folder}{system}"));
        }
        let mut adapted = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, number) = rest.split_at(at);
            let end = number.find(|c: char| !c.is_ascii_digit());
            let (number, after) = number.split_at(end.unwrap_or(number.len()));
            // Behind `:`, `-p` or `--port`; other numbers may be the same by chance.
            let names_port = [":", "-p ", "port "];
            let names_port = names_port.iter().any(|word| before.ends_with(word));
            let ports = self.ports.iter().filter(|_| names_port);
            let port = ports.into_iter().find(|(port, _)| *port == number);
            adapted.push_str(before);
            adapted.push_str(port.map_or(number, |(_, port)| port));
            rest = after;
        }
        adapted + rest
    }

    /// A script of the parts. It prints a line `@N` before the output of part N.
    fn script(&self, parts: &[Part]) -> String {
        let mut script = String::new();
        for (at, part) in parts.iter().enumerate() {
            match part {
                Part::File(name, text) => {
                    let written = self.folder.write(&format!("part-{at}"), &self.adapt(text));
                    let name = self.adapt(&format!(" {name}"));
                    let name = name.trim_start();
                    writeln!(
                        script,
                        "mkdir -p \"$(dirname {name})\"; cp {written} {name}"
                    )
                }
                Part::Script(block) => writeln!(script, "{}", servers_first(&self.adapt(block))),
                Part::Shown(command, _) => {
                    writeln!(script, "echo; echo @{at}\n{}\necho @", self.adapt(command))
                }
            }
            .unwrap();
        }
        script + "\nwait_for_jobs\n"
    }

    /// Runs the parts, ends all that they started, and returns what was printed.
    fn run(&self, parts: &[Part]) -> Result<String, String> {
        let script = include_str!("pages/shell.sh").to_owned() + &self.script(parts);
        let script = self.folder.write("script", &script);
        let binary = Path::new(env!("CARGO_BIN_EXE_quell")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        // `timeout` ends all that the page started, not the shell alone.
        let mut shell = Command::new("timeout");
        shell
            .args(["--kill-after=2", MAX_SECONDS, "bash", &script])
            .current_dir(self.folder.path(""))
            .env("PATH", format!("{}:{path}:/usr/sbin", binary.display()))
            .env("no_proxy", "*")
            .env("QUELL_HTTP", format!("127.0.0.1:{}", self.port("8080")))
            .env("QUELL_RESP", format!("127.0.0.1:{}", self.port("6380")))
            .env(
                "QUELL_URL",
                format!("http://127.0.0.1:{}", self.port("8080")),
            )
            .env("QUELL_LISTEN", format!("127.0.0.1:{}", self.port("7600")))
            .env("FLEET_ADMIN", format!("127.0.0.1:{}", self.port("7601")))
            .env(
                "QUELL_FLEET_URL",
                format!("http://127.0.0.1:{}", self.port("7601")),
            )
            .env("REDIS_PORT", self.port("6379"))
            .envs(SHORT)
            .env("QUELL_STORE_TIMEOUT", "10s")
            .env("QUELL_DRAIN_TIMEOUT", "0s");
        let ended = shell.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if ended.status.success() {
            Ok(text(&ended.stdout))
        } else {
            Err(format!("{}\n{}", text(&ended.stdout), text(&ended.stderr)))
        }
    }
}

/// Returns true if a command printed these lines, of which one that ends with `...` is a beginning.
pub(crate) fn is_as_shown(output: &str, expected: &[String]) -> bool {
    let lines: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
    let is_same = |(line, said): (&&str, &String)| match said.strip_suffix("...") {
        Some(beginning) => line.starts_with(beginning.trim_end()),
        None => line == said,
    };
    lines.len() == expected.len() && lines.iter().zip(expected).all(is_same)
}

/// Compares what each shown command printed with the page.
fn compare(parts: &[Part], printed: &str) -> Result<(), String> {
    for (at, part) in parts.iter().enumerate() {
        let Part::Shown(command, expected) = part else {
            continue;
        };
        let begin = format!("\n@{at}\n");
        let (_, output) = printed.split_once(&begin).unwrap_or_default();
        let (output, _) = output.split_once("@\n").unwrap_or((output, ""));
        if !is_as_shown(output, expected) {
            return Err(format!(
                "{command}\nprinted\n{output}\nand not\n{expected:#?}"
            ));
        }
    }
    Ok(())
}

/// All pages of the repository that people wrote, by their paths.
fn pages() -> Vec<String> {
    let made_by_tools = read("xtask/src/made_by_tools.txt");
    let mut folders = vec![String::new()];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(of_repository(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{folder}{name}");
            if !entry.file_type().unwrap().is_dir() {
                pages.extend(name.ends_with(".md").then_some(path));
            } else if !made_by_tools.lines().any(|folder| folder == name) {
                folders.push(path + "/");
            }
        }
    }
    pages.sort();
    pages
}

fn read(page: &str) -> String {
    std::fs::read_to_string(of_repository(page)).unwrap()
}

/// Clients and servers that pages start.
fn require_all() {
    for client in [
        "bash",
        "curl",
        "redis-cli",
        "redis-server",
        "ab",
        "openssl",
        "python3",
        "etcd",
        "man",
    ] {
        require(client);
    }
}

#[test]
fn what_a_newcomer_types_works_and_prints_what_the_page_shows() {
    require_all();
    let mut needed = BTreeSet::new();
    let mut tried = Vec::new();
    for name in pages().into_iter().filter(|name| name != OF_MACHINES) {
        let page = read(&name);
        let parts = parts(&name, &page, &mut needed);
        if parts.iter().any(|part| !matches!(part, Part::File(..))) {
            tried.push((name, parts));
        }
    }
    let exceptions = NOT_RUN.iter().chain(&RUN_ELSEWHERE).enumerate();
    let unneeded = exceptions.filter(|(at, _)| !needed.contains(at));
    let unneeded: Vec<_> = unneeded.map(|(_, exception)| exception).collect();
    assert!(
        unneeded.is_empty(),
        "no page has these blocks: {unneeded:?}"
    );
    let failures: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = tried
            .iter()
            .map(|(name, parts)| {
                scope.spawn(move || {
                    let place = Place::new(name);
                    let result = place
                        .run(parts)
                        .and_then(|printed| compare(parts, &printed));
                    result.err().map(|error| format!("{name}: {error}"))
                })
            })
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A block of a page, on the port of a server.
fn client_block(page: &str, begins: &str, port: u16) -> String {
    let page = std::fs::read_to_string(of_repository(page)).unwrap();
    let found = blocks(&page).into_iter();
    let mut found = found.filter(|(_, _, block)| block.starts_with(begins));
    found.next().unwrap().2.replace("6380", &port.to_string())
}

#[test]
fn redis_clients_ask_as_the_page_shows() {
    let server = Server::start(&["--rules", &of_repository("examples/shop.yaml")]);
    let python = client_block("docs/resp.md", "# redis-py", server.resp);
    let printed = run(&mut redis_py_eval(&python)).expect_success();
    assert_eq!(printed, "True checkout 4\n");
    let module = client_block("docs/resp.md", "// ioredis", server.resp);
    let printed = run(&mut ioredis_eval(&module)).expect_success();
    assert_eq!(printed, "true checkout\n");
}
