//! Rivals on the wire: the servers that run, and the calls that each gets.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Settings;
use super::clients::{KEYS, Load, Target, look_resp, redis_benchmark};
use crate::machine::bench_folder;
use crate::processes::{Running, built_quell, free_address, installed_throttlecrab, on_path};
use crate::report::progress;

/// 100 a minute, bursts of 101, one at a time.
pub(super) const THROTTLE: [&str; 6] =
    ["CL.THROTTLE", "user:__rand_int__", "100", "100", "60", "1"];

/// The same over HTTP: `bench/inputs/rules.yaml` has the limit.
const ACQUIRE: (&str, &str) = (
    "/v1/acquire",
    r#"{"domain":"bench","entries":{"user":"KEY"}}"#,
);

/// A RESP call that is measured: its server and its words.
#[derive(Debug)]
pub(super) struct Rival {
    pub(super) name: &'static str,
    pub(super) target: Target,
    pub(super) words: Vec<&'static str>,
    /// The server's index in [`Servers::running`].
    pub(super) server: usize,
}

/// A JSON request over HTTP.
#[derive(Debug)]
pub(super) struct HttpRival {
    pub(super) name: &'static str,
    pub(super) target: Target,
    /// Path and body.
    pub(super) request: (&'static str, &'static str),
    pub(super) server: usize,
}

/// A Quell server that is measured.
#[derive(Clone, Copy, Debug)]
struct Variant {
    name: &'static str,
    has_tokens: bool,
    has_tls: bool,
}

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "quell",
        has_tokens: false,
        has_tls: false,
    },
    Variant {
        name: "quell, tokens",
        has_tokens: true,
        has_tls: false,
    },
    Variant {
        name: "quell, TLS",
        has_tokens: false,
        has_tls: true,
    },
];

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
        let program = match &settings.quell {
            Some(program) => program.clone(),
            None => built_quell(&["otel"])?,
        };
        for variant in VARIANTS {
            servers.start_quell(&program, variant)?;
        }
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
    fn ask(&mut self, name: &'static str, target: Target, words: &[&'static str]) {
        self.resp.push(Rival {
            name,
            target,
            words: words.to_vec(),
            server: self.running.len() - 1,
        });
    }

    /// Adds a request for the server that was started last.
    fn request(
        &mut self,
        name: &'static str,
        target: Target,
        request: (&'static str, &'static str),
    ) {
        self.http.push(HttpRival {
            name,
            target,
            request,
            server: self.running.len() - 1,
        });
    }

    fn start_quell(&mut self, program: &Path, variant: Variant) -> Result<()> {
        let (resp, http) = (free_address()?, free_address()?);
        let mut command = Command::new(program);
        let rules = bench_folder().join("inputs").join("rules.yaml");
        command.arg("serve").arg("--rules").arg(rules);
        command.args(["--resp", &resp.to_string()]);
        command.args(["--http", &http.to_string()]);
        let folder = bench_folder().join("target").join("secrets");
        fs::create_dir_all(&folder)?;
        let token = match variant.has_tokens {
            true => {
                let file = folder.join("credentials.toml");
                let token = new_token(program, &file)?;
                command.arg("--credentials").arg(file);
                Some(token)
            }
            false => None,
        };
        if variant.has_tls {
            let made = rcgen::generate_simple_self_signed([resp.ip().to_string()])?;
            let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
            fs::write(&certificate, made.cert.pem())?;
            fs::write(&key, made.signing_key.serialize_pem())?;
            command.arg("--tls-cert").arg(certificate);
            command.arg("--tls-key").arg(key);
        }
        let target = |address| Target {
            address,
            token: token.clone(),
            has_tls: variant.has_tls,
        };
        self.run(variant.name, &mut command, resp)?;
        look_resp(&target(resp), &THROTTLE, "0\n101\n100\n-1\n")?;
        self.ask(variant.name, target(resp), &THROTTLE);
        self.request(variant.name, target(http), ACQUIRE);
        Ok(())
    }

    fn start_redis(&mut self) -> Result<()> {
        let address = self.redis("redis", &[])?;
        // Every key that GET may ask for exists, and stays.
        let fill = ["SET", "user:__rand_int__", "1"];
        redis_benchmark(&address, Load::Pipeline(128), KEYS, 2_000_000, &fill)?;
        let get = ["GET", "user:__rand_int__"];
        self.ask("redis GET", address.clone(), &get);
        let set = ["SET", "pexp:__rand_int__", "1", "PX", "1000"];
        self.ask("redis SET PX", address, &set);
        Ok(())
    }

    fn start_redis_cell(&mut self, module: &Path) -> Result<()> {
        let module = module.to_str().context("the module's path is not UTF-8")?;
        let address = self.redis("redis-cell", &["--loadmodule", module])?;
        look_resp(&address, &THROTTLE, "0\n101\n")?;
        self.ask("redis-cell", address, &THROTTLE);
        Ok(())
    }

    fn redis(&mut self, name: &str, more: &[&str]) -> Result<Target> {
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
        Ok(Target::plain(address))
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
        look_resp(&Target::plain(resp), &words, "1\n")?;
        self.ask("throttlecrab", Target::plain(resp), &words);
        let body = r#"{"key":"KEY","max_burst":101,"count_per_period":100,"period":60}"#;
        self.request("throttlecrab", Target::plain(http), ("/throttle", body));
        Ok(())
    }
}

/// Makes a token, and `file` the credentials that know it.
fn new_token(program: &Path, file: &Path) -> Result<String> {
    let _ = fs::remove_file(file);
    let mut command = Command::new(program);
    command.args(["token", "new", "bench", "--role", "ask", "--append"]);
    let output = command.arg(file).output()?;
    ensure!(
        output.status.success(),
        "quell token new failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
