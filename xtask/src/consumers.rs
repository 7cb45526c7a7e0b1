//! Consumers: crates as readers of a README or a guide write them, with its dependency lines and its Rust,
//! built from the packed crates. A program on a page is run as well.

use std::fmt::Write as _;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::programs::{self, cargo};

/// Where readers take the crates from: a checkout beside their program. Here they come from the packages.
const CHECKOUT: &str = "path = \"../quell/crates/";

/// A page with Rust.
struct Consumer {
    page: &'static str,
    name: &'static str,
    /// What its blocks find in scope.
    parameters: &'static str,
}

const CONSUMERS: [Consumer; 11] = [
    Consumer::of("README.md", "front"),
    Consumer::of("crates/quell/README.md", ALONE),
    Consumer::of("crates/quell-core/README.md", "on-core"),
    Consumer::of("crates/quell-protocol/README.md", "on-protocol"),
    Consumer::of("crates/quell-redis/README.md", "with-redis"),
    Consumer {
        parameters: "limiter: quell::Limiter<quell::store::memory::MemoryStore>",
        ..Consumer::of("crates/quell-rules/README.md", "with-rules")
    },
    Consumer::of("docs/tower.md", TOWER),
    Consumer::of("crates/quell-server/README.md", "server"),
    Consumer::of("crates/quell-shares/README.md", "on-shares"),
    Consumer::of("crates/quell-fleet/README.md", "node"),
    Consumer {
        parameters: "wanted: tokio::sync::watch::Receiver<quell_coordinator::leader::Wanted>",
        ..Consumer::of("crates/quell-coordinator/README.md", "coordinator")
    },
];

/// The consumer whose program asks six times and ends.
const ALONE: &str = "alone";

/// The consumer whose program serves HTTP, at this address.
const TOWER: &str = "tower-guide";
const TOWER_ADDRESS: &str = "127.0.0.1:3000";

/// Writes the consumers into the workspace of the unpacked packages.
///
/// # Errors
///
/// When a page or a folder cannot be read or written.
pub(crate) fn write(root: &Path, workspace: &Path) -> Result<()> {
    for consumer in &CONSUMERS {
        let folder = workspace.join(consumer.name);
        fs::create_dir_all(folder.join("src"))?;
        let text = page(root, consumer.page)?;
        fs::write(folder.join("Cargo.toml"), consumer.manifest(&text)?)?;
        fs::write(folder.join("src/lib.rs"), consumer.library(&text)?)?;
        if let Some(program) = rust_blocks(&text).into_iter().find(is_program) {
            fs::write(folder.join("src/main.rs"), program)?;
        }
    }
    Ok(())
}

fn page(root: &Path, page: &str) -> Result<String> {
    fs::read_to_string(root.join(page)).with_context(|| format!("no {page}"))
}

/// The members of the workspace that [`write`] makes.
pub(crate) fn members() -> impl Iterator<Item = &'static str> {
    CONSUMERS.iter().map(|consumer| consumer.name)
}

/// Builds each by itself, so that none gets features that another one asked for.
///
/// # Errors
///
/// When one does not build.
pub(crate) fn check(workspace: &Path, target: &Path) -> Result<()> {
    for name in members() {
        let mut check = cargo(workspace);
        check.args(["check", "--quiet", "--package", name]);
        programs::share_target(&mut check, target);
        programs::run(&mut check).with_context(|| format!("the Rust on the page of {name}"))?;
    }
    Ok(())
}

/// Runs the programs of pages, which have to do what their page says.
///
/// # Errors
///
/// When one does not build, or does something else.
pub(crate) fn run(root: &Path, workspace: &Path, target: &Path) -> Result<()> {
    // On a port of its own; only now, so that `check` has seen the page as it is.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let main = workspace.join(TOWER).join("src/main.rs");
    let text = fs::read_to_string(&main)?;
    fs::write(&main, text.replace(TOWER_ADDRESS, &port.to_string()))?;
    let has_program = |name: &&str| workspace.join(name).join("src/main.rs").exists();
    let programs: Vec<&str> = members().filter(has_program).collect();
    let mut build = cargo(workspace);
    build.args(["build", "--quiet", "--bins"]);
    for name in &programs {
        build.args(["--package", name]);
    }
    programs::share_target(&mut build, target);
    programs::run(&mut build)?;
    let built = |name| Command::new(target.join("debug").join(name));
    asks_six_times(&mut built(ALONE))?;
    let mut server = built(TOWER).stdin(Stdio::null()).spawn()?;
    let guide = page(root, "docs/tower.md")?;
    let refuses = refuses_those_above_the_burst(&guide, &port.to_string(), &mut server);
    server.kill()?;
    server.wait()?;
    refuses?;
    let mut others = programs
        .iter()
        .filter(|name| ![ALONE, TOWER].contains(name));
    others.try_for_each(|name| programs::run(&mut built(name)))
}

/// Five pass, the sixth does not.
fn asks_six_times(program: &mut Command) -> Result<()> {
    let output = program.stderr(Stdio::inherit()).output()?;
    let printed = String::from_utf8(output.stdout)?;
    let outcomes: Vec<&str> = printed.lines().collect();
    let is_five_of_six = outcomes.len() == 6
        && outcomes[..5].iter().all(|line| line.starts_with("Allow"))
        && outcomes[5].starts_with("Deny");
    ensure!(is_five_of_six, "the program of {ALONE} prints {printed}");
    Ok(())
}

/// The page's own `ab` against its server: 20 of 30 calls pass, and ten more each second.
fn refuses_those_above_the_burst(guide: &str, address: &str, server: &mut Child) -> Result<()> {
    let called = guide.split('`').find(|text| text.starts_with("ab "));
    let called = called.context("the page calls its program by `ab`")?;
    let called = called.replace(TOWER_ADDRESS, address);
    let end = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_err() {
        ensure!(server.try_wait()?.is_none(), "the program of {TOWER} ends");
        ensure!(Instant::now() < end, "the program of {TOWER} is silent");
        thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    let mut words = called.split(' ');
    let ab = Command::new(words.next().unwrap_or_default())
        .args(words)
        .output()?;
    let took = begun.elapsed();
    let report = String::from_utf8(ab.stdout)?;
    let count = |name: &str| -> Option<u64> {
        let found = report.lines().find_map(|line| line.strip_prefix(name))?;
        found.trim().parse().ok()
    };
    let (complete, refused) = (count("Complete requests:"), count("Non-2xx responses:"));
    let refilled = u64::try_from(took.as_millis() / 100)? + 1;
    let refused = refused.unwrap_or(0);
    ensure!(
        complete == Some(30) && (10_u64.saturating_sub(refilled)..=10).contains(&refused),
        "{complete:?} calls, {refused} refused, in {took:?}"
    );
    Ok(())
}

impl Consumer {
    const fn of(page: &'static str, name: &'static str) -> Self {
        Self {
            page,
            name,
            parameters: "",
        }
    }

    /// The page's own dependency lines, with packages in place of the repository.
    fn manifest(&self, text: &str) -> Result<String> {
        let lines = dependency_lines(text).with_context(|| format!("no lines in {}", self.page))?;
        Ok(format!(
            "[package]\nname = {:?}\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n{}",
            self.name,
            from_packages(lines)
        ))
    }

    /// A function for each block of Rust that is no program.
    fn library(&self, text: &str) -> Result<String> {
        let blocks = rust_blocks(text);
        ensure!(!blocks.is_empty(), "{} has no Rust", self.page);
        let mut library = "#![allow(unused)]\n".to_owned();
        let functions = blocks.iter().filter(|block| !is_program(block));
        for (at, block) in functions.enumerate() {
            write!(
                library,
                "\npub async fn block_{at}({}) -> Result<(), Box<dyn std::error::Error>> {{\n{block}\nOk(())\n}}\n",
                self.parameters
            )?;
        }
        Ok(library)
    }
}

/// Dependency lines with packages in place of a checkout.
fn from_packages(lines: &str) -> String {
    let mut parts = lines.split(CHECKOUT);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once('"').unwrap_or(("", part));
        replaced += "version = \"*\"";
        replaced += rest;
    }
    replaced
}

/// What a page has under `[dependencies]`.
fn dependency_lines(page: &str) -> Option<&str> {
    let (_, lines) = page.split_once("```toml\n[dependencies]\n")?;
    Some(lines.split_once("```")?.0)
}

fn is_program(block: &&str) -> bool {
    block.contains("fn main()")
}

fn rust_blocks(page: &str) -> Vec<&str> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced
        .filter_map(|block| block.strip_prefix("rust\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Repository;

    #[test]
    fn every_page_with_rust_is_built() {
        let repository = Repository::load().unwrap();
        let pages = repository.files.iter().filter(|file| {
            let is_of_a_crate =
                file.path.starts_with("crates/") && file.path.ends_with("/README.md");
            let is_guide = file.path.starts_with("docs/") && file.path.ends_with(".md");
            is_of_a_crate || is_guide || file.path == "README.md"
        });
        let with_rust: Vec<&str> = pages
            .filter(|file| file.text.contains("\n```rust"))
            .map(|file| file.path.as_str())
            .collect();
        let mut built = CONSUMERS.map(|consumer| consumer.page);
        built.sort_unstable();
        assert_eq!(with_rust, built, "a block that is not built proves nothing");
        for consumer in &CONSUMERS {
            let readme = repository
                .files
                .iter()
                .find(|file| file.path == consumer.page);
            let readme = &readme.unwrap().text;
            assert_eq!(
                readme.matches("\n```rust").count(),
                rust_blocks(readme).len()
            );
        }
    }

    /// The names behind `features = [` and the word feature.
    fn features(line: &str) -> Vec<&str> {
        let listed = line.split("features = [").skip(1);
        let listed = listed.filter_map(|rest| rest.split(']').next());
        let listed = listed.flat_map(|names| names.split('"').skip(1).step_by(2));
        let named = line.split("eature `").skip(1);
        listed
            .chain(named.filter_map(|rest| rest.split('`').next()))
            .collect()
    }

    #[test]
    fn dependency_lines_name_crates_and_features_that_there_are() {
        let repository = Repository::load().unwrap();
        let text = |path: &str| {
            let file = repository.files.iter().find(|file| file.path == path);
            &file.unwrap_or_else(|| panic!("no {path}")).text
        };
        let mut found = 0;
        for consumer in &CONSUMERS {
            let lines = dependency_lines(text(consumer.page)).unwrap();
            for line in lines.lines().filter(|line| line.starts_with("quell")) {
                let name = line.split(' ').next().unwrap();
                let path = format!("{CHECKOUT}{name}\"");
                assert!(line.contains(&path), "{}: {line}", consumer.page);
                let manifest = text(&format!("crates/{name}/Cargo.toml"));
                for feature in features(line) {
                    found += 1;
                    let is_there = manifest.contains(&format!("\n{feature} = ["));
                    assert!(is_there, "{}: {name} has no {feature}", consumer.page);
                }
            }
        }
        assert!(found > 2, "{found}");
    }

    #[test]
    fn features_of_the_library_are_those_of_its_page() {
        let repository = Repository::load().unwrap();
        let text = |path: &str| {
            let file = repository.files.iter().find(|file| file.path == path);
            &file.unwrap().text
        };
        let library = text("crates/quell/src/lib.rs");
        let (_, page) = library.split_once("//! # Features\n").unwrap();
        let listed = page.lines().filter_map(|line| line.strip_prefix("//! * `"));
        let mut listed: Vec<&str> = listed.map(|line| line.split('`').next().unwrap()).collect();
        let (_, manifest) = text("crates/quell/Cargo.toml")
            .split_once("[features]\n")
            .unwrap();
        let manifest = manifest.split("\n[").next().unwrap();
        let there = manifest.lines().filter(|line| !line.starts_with('#'));
        let mut there: Vec<&str> = there
            .filter_map(|line| Some(line.split_once(" = [")?.0))
            .collect();
        listed.sort_unstable();
        there.sort_unstable();
        assert_eq!(listed, there);
    }
}
