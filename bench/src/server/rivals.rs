//! Rivals on the wire: the servers that run, and the calls that each gets.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Settings;
use super::clients::{look_resp, redis_benchmark};
use crate::machine::bench_folder;
use crate::processes::{Running, built_quell, free_address, installed_throttlecrab, on_path};
use crate::report::progress;

/// 100 a minute, bursts of 101, one at a time.
pub(super) const THROTTLE: [&str; 6] =
    ["CL.THROTTLE", "user:__rand_int__", "100", "100", "60", "1"];

/// The same over HTTP: `bench/inputs/rules.yaml` has the limit.
const ACQUIRE: &str = r#"{"domain":"bench","entries":{"user":"KEY"}}"#;

/// A RESP call that is measured: its server and its words.
#[derive(Debug)]
pub(super) struct Rival {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    pub(super) words: Vec<&'static str>,
    /// The server's index in [`Servers::running`].
    pub(super) server: usize,
}

/// A JSON request over HTTP.
#[derive(Debug)]
pub(super) struct HttpRival {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    pub(super) path: &'static str,
    pub(super) body: &'static str,
    pub(super) server: usize,
}

/// Running servers, and the calls to measure.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) running: Vec<Running>,
    pub(super) resp: Vec<Rival>,
    pub(super) http: Vec<HttpRival>,
}

impl Servers {
    /// Starts all servers that `settings` names, and checks that each gives the expected answer.
    ///
    /// # Errors
    /// If a server is not installed, does not start, or answers otherwise.
    pub(super) fn start(settings: &Settings) -> Result<Self> {
        let mut servers = Self::default();
        servers.start_ceiling()?;
        servers.start_quell(settings.quell.as_deref())?;
        if !settings.without_redis {
            servers.start_redis()?;
        }
        if let Some(module) = &settings.redis_cell {
            servers.start_redis_cell(module)?;
        }
        if settings.with_throttlecrab {
            servers.start_throttlecrab()?;
        }
        Ok(servers)
    }

    fn run(&mut self, name: &str, command: &mut Command, address: SocketAddr) -> Result<()> {
        progress(&format!("starting {name} on {address}"));
        let running = Running::start(name, command, address)?;
        self.running.push(running);
        Ok(())
    }

    /// Adds a call for the server that was started last.
    fn ask(&mut self, name: &'static str, address: SocketAddr, words: &[&'static str]) {
        self.resp.push(Rival {
            name,
            address,
            words: words.to_vec(),
            server: self.running.len() - 1,
        });
    }

    fn start_ceiling(&mut self) -> Result<()> {
        let address = free_address()?;
        let me = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(me);
        command.args(["ceiling", &address.to_string()]);
        self.run("ceiling", &mut command, address)?;
        look_resp(address, &THROTTLE, "*5\r\n:0\r\n:101\r\n")?;
        self.ask("ceiling", address, &THROTTLE);
        self.http.push(HttpRival {
            name: "ceiling",
            address,
            path: "/v1/acquire",
            body: ACQUIRE,
            server: self.running.len() - 1,
        });
        Ok(())
    }

    fn start_quell(&mut self, program: Option<&Path>) -> Result<()> {
        let (resp, http) = (free_address()?, free_address()?);
        let mut command = match program {
            Some(program) => Command::new(program),
            None => Command::new(built_quell()?),
        };
        let rules = bench_folder().join("inputs").join("rules.yaml");
        command.arg("serve").arg("--rules").arg(rules);
        command.args(["--resp", &resp.to_string()]);
        command.args(["--http", &http.to_string()]);
        self.run("quell", &mut command, resp)?;
        look_resp(resp, &THROTTLE, "*5\r\n:0\r\n:101\r\n:100\r\n:-1\r\n")?;
        self.ask("quell", resp, &THROTTLE);
        self.http.push(HttpRival {
            name: "quell",
            address: http,
            path: "/v1/acquire",
            body: ACQUIRE,
            server: self.running.len() - 1,
        });
        Ok(())
    }

    fn start_redis(&mut self) -> Result<()> {
        let address = self.redis("redis", &[])?;
        // Every key that GET may ask for exists, and stays.
        let fill = ["SET", "user:__rand_int__", "1"];
        redis_benchmark(address, 128, 2_000_000, &fill)?;
        self.ask("redis GET", address, &["GET", "user:__rand_int__"]);
        let set = ["SET", "pexp:__rand_int__", "1", "PX", "1000"];
        self.ask("redis SET PX", address, &set);
        Ok(())
    }

    fn start_redis_cell(&mut self, module: &Path) -> Result<()> {
        let module = module.to_str().context("the module's path is not UTF-8")?;
        let address = self.redis("redis-cell", &["--loadmodule", module])?;
        look_resp(address, &THROTTLE, "*5\r\n:0\r\n:101\r\n")?;
        self.ask("redis-cell", address, &THROTTLE);
        Ok(())
    }

    fn redis(&mut self, name: &str, more: &[&str]) -> Result<SocketAddr> {
        ensure!(
            on_path("redis-server").is_some(),
            "redis-server is not installed (Debian: redis-server), and without it there is nothing \
             to compare with; install it or say --without-redis"
        );
        let address = free_address()?;
        let folder = bench_folder().join("target").join("redis");
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", &address.ip().to_string()]);
        command.args(["--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(folder).args(more);
        self.run(name, &mut command, address)?;
        Ok(address)
    }

    fn start_throttlecrab(&mut self) -> Result<()> {
        let (resp, http) = (free_address()?, free_address()?);
        let host = resp.ip().to_string();
        let mut command = Command::new(installed_throttlecrab()?);
        command.args(["--redis", "--redis-host", &host]);
        command.args(["--redis-port", &resp.port().to_string()]);
        command.args(["--http", "--http-host", &host]);
        command.args(["--http-port", &http.port().to_string()]);
        command.args(["--log-level", "error"]);
        self.run("throttlecrab", &mut command, resp)?;
        let mut words = THROTTLE.to_vec();
        words[0] = "THROTTLE";
        look_resp(resp, &words, "*5\r\n:1\r\n")?;
        self.ask("throttlecrab", resp, &words);
        self.http.push(HttpRival {
            name: "throttlecrab",
            address: http,
            path: "/throttle",
            body: r#"{"key":"KEY","max_burst":101,"count_per_period":100,"period":60}"#,
            server: self.running.len() - 1,
        });
        Ok(())
    }
}
