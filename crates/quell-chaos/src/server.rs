//! The `quell` command under attack: servers on free ports, killed when they are dropped.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quell_testkit::process::Process;
use serde_json::{Value, json};

use crate::http::Client;
use crate::process::{PATIENCE, start, wait};

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) http: u16,
    pub(crate) resp: u16,
}

/// The command, in the folder of the running program.
///
/// # Errors
///
/// When it is not built.
pub(crate) fn quell() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let quell = here.with_file_name("quell");
    ensure!(
        quell.is_file(),
        "{} is missing: run `cargo xtask chaos`",
        quell.display()
    );
    Ok(quell)
}

impl Server {
    /// Starts a server with rules, which are written to a file of its own, and waits until it is
    /// ready.
    pub(crate) async fn start(rules: &str, words: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("rules.yaml");
        fs::write(&file, rules)?;
        let mut command = Command::new(quell()?);
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        command.arg("--rules").arg(&file).args(words);
        Self::launch(start(command, folder)).await
    }

    /// Waits until a started process reports where it listens.
    pub(crate) async fn launch(process: Process) -> Result<Self> {
        let mut server = Self {
            process,
            http: 0,
            resp: 0,
        };
        let ready = wait("the server is ready", PATIENCE, async || {
            let log = server.process.stderr();
            // The last line may be incomplete.
            let lines = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
            let ready = lines.lines().find_map(|line| line.strip_prefix("ready: "));
            let is_over = server.process.end().is_some();
            match ready {
                Some(ready) => Some(Ok(ready.to_owned())),
                None => is_over.then_some(Err(log)),
            }
        })
        .await?;
        let ready = match ready {
            Ok(ready) => ready,
            Err(log) => bail!("the server ended at its start:\n{log}"),
        };
        server.http = port_after(&ready, "HTTP on http://127.0.0.1:")?;
        server.resp = port_after(&ready, "RESP on 127.0.0.1:")?;
        Ok(server)
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.http)
    }

    pub(crate) async fn health(&self) -> Result<Value> {
        Ok(self.client().get("/healthz").await?.body)
    }

    /// The sum of all series of `/metrics` with this name; 0 if there is none.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let page = self.client().get("/metrics").await?.text;
        let series = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_it = rest.starts_with([' ', '{']);
            is_it.then(|| rest.rsplit_once(' ')?.1.parse::<f64>().ok())?
        });
        Ok(series.sum())
    }

    /// Waits until the server owes its store nothing.
    pub(crate) async fn has_paid(&self, at_most: Duration) -> Result<()> {
        wait("all is paid", at_most, async || {
            let owed = self.metric("quell_store_owed_keys").await.ok()?;
            (owed < 0.5).then_some(())
        })
        .await
    }

    /// Waits until the server takes its store for gone and sends it nothing more, or until some time
    /// is over. Returns the time in which its calls may have been on their way.
    pub(crate) async fn loses_store(
        &self,
        since: Instant,
        at_most: Duration,
    ) -> Result<(Instant, Instant)> {
        let mut client = self.client();
        while since.elapsed() < at_most {
            let page = client.get("/metrics").await?.text;
            if page.lines().any(|line| line == "quell_store_gone 1") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok((since, Instant::now()))
    }

    /// Number that the store has counted of a limit for a user, according to a peek.
    pub(crate) async fn used(&self, path: &str, user: &str, limit: usize) -> Result<usize> {
        let body = json!({"domain": "d", "entries": {"path": path, "user": user}});
        let said = self.client().post("/v1/peek", &body).await?;
        let remaining = said.body["remaining"].as_u64();
        let remaining = remaining.filter(|_| !said.is_degraded());
        let remaining = remaining.with_context(|| format!("a peek says {}", said.text))?;
        Ok(limit.saturating_sub(usize::try_from(remaining)?))
    }

    /// The number of lines of its log that contain these words.
    pub(crate) fn logged(&self, words: &str) -> usize {
        let log = self.process.stderr();
        log.lines().filter(|line| line.contains(words)).count()
    }

    /// Waits until it has ended.
    pub(crate) async fn end(&mut self, at_most: Duration) -> Result<ExitStatus> {
        let process = &mut self.process;
        wait("the server ends", at_most, async || process.end()).await
    }
}

fn port_after(ready: &str, words: &str) -> Result<u16> {
    let (_, rest) = ready
        .split_once(words)
        .context("no port in the ready line")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    Ok(digits.unwrap_or_default().parse()?)
}
