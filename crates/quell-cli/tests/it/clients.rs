//! Clients: third-party programs that people use with a server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::PATIENCE;

/// Advice when a client is missing.
const INSTALL: &str = "install it with `cargo xtask install`";

/// The folder with the Python and Node clients.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients")
}

/// The path of a program, looked for on the path and among the system's servers, which are not on
/// every user's path.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Fails if a program is not there.
pub(crate) fn require(name: &str) {
    assert!(
        find(name).is_some(),
        "the client {name} is missing: {INSTALL}"
    );
}

/// A program on the path.
fn program(name: &str) -> Command {
    require(name);
    Command::new(name)
}

/// curl; without proxies, which cannot reach this machine.
pub(crate) fn curl() -> Command {
    let mut curl = program("curl");
    let most = PATIENCE.as_secs().to_string();
    curl.args(["--noproxy", "*", "--max-time", &most]);
    curl
}

/// redis-cli for the server on this port.
pub(crate) fn redis_cli(port: u16) -> Command {
    let mut command = program("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

/// redis-benchmark for the server on this port.
pub(crate) fn redis_benchmark(port: u16) -> Command {
    let mut command = program("redis-benchmark");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

/// nginx.
pub(crate) fn nginx() -> Command {
    require("nginx");
    Command::new(find("nginx").unwrap())
}

/// Envoy.
pub(crate) fn envoy() -> Command {
    of_python("envoy")
}

/// Caddy.
pub(crate) fn caddy() -> Command {
    program("caddy")
}

/// `ApacheBench`.
pub(crate) fn ab() -> Command {
    program("ab")
}

/// Prometheus's tool for operators.
pub(crate) fn promtool() -> Command {
    program("promtool")
}

/// A program that believes that it is root's.
pub(crate) fn fakeroot() -> Command {
    program("fakeroot")
}

/// The program that moves logs away.
pub(crate) fn logrotate() -> Command {
    require("logrotate");
    Command::new(find("logrotate").unwrap())
}

/// systemd's tool that checks units.
pub(crate) fn systemd_analyze() -> Command {
    program("systemd-analyze")
}

/// systemd's tool that enables units.
pub(crate) fn systemctl() -> Command {
    program("systemctl")
}

/// The reader of manual pages, 80 columns wide.
pub(crate) fn man() -> Command {
    let mut command = program("man");
    command.env("MANWIDTH", "80");
    command
}

/// A program of the Python clients.
fn of_python(name: &str) -> Command {
    let program = folder().join(".venv/bin").join(name);
    assert!(program.is_file(), "the client {name} is missing: {INSTALL}");
    Command::new(program)
}

/// The checker of Dockerfiles.
pub(crate) fn hadolint() -> Command {
    of_python("hadolint")
}

/// The checker of manifests by Kubernetes's own schemas.
pub(crate) fn kubernetes_validate() -> Command {
    of_python("kubernetes-validate")
}

/// Python with redis-py.
fn python() -> Command {
    of_python("python")
}

/// redis-py: runs the script of that name with the server's port.
pub(crate) fn redis_py(port: u16) -> Command {
    let mut command = python();
    command
        .arg(folder().join("redis_py.py"))
        .arg(port.to_string());
    command
}

/// The documents of a file in YAML.
pub(crate) fn yaml(text: &str) -> Vec<serde_json::Value> {
    let program =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.argv[1]))))";
    let read = python().args(["-c", program, text]).output().unwrap();
    assert!(read.status.success(), "{read:?}");
    serde_json::from_slice(&read.stdout).unwrap()
}

/// Python with redis-py: runs this program.
pub(crate) fn redis_py_eval(program: &str) -> Command {
    let mut command = python();
    command.args(["-c", program]);
    command
}

/// Node.
pub(crate) fn node() -> Command {
    program("node")
}

/// Node with a library, in the folder where programs find it.
fn node_with(library: &str) -> Command {
    let path = folder().join("node_modules").join(library);
    assert!(path.is_dir(), "the client {library} is missing: {INSTALL}");
    let mut command = node();
    command.current_dir(folder());
    command
}

/// ioredis: runs this module.
pub(crate) fn ioredis_eval(module: &str) -> Command {
    let mut command = node_with("ioredis");
    command.args(["--input-type=module", "--eval", module]);
    command
}

/// ioredis: runs the script of that name with the server's port.
pub(crate) fn ioredis(port: u16) -> Command {
    let mut command = node_with("ioredis");
    command
        .arg(folder().join("ioredis.mjs"))
        .arg(port.to_string());
    command
}

/// Chromium: takes the pictures of the docs into a folder, after so many seconds.
pub(crate) fn screenshots(folder: &str, seconds: u32) -> Command {
    require("chromium-headless-shell");
    let mut command = node_with("playwright-core");
    command.args(["screenshots.mjs", env!("CARGO_BIN_EXE_quell"), folder]);
    command.arg(seconds.to_string());
    command
}

/// Chromium: runs this part of a script that uses the console on a port.
pub(crate) fn browser(script: &str, part: &str, port: u16) -> Command {
    require("chromium-headless-shell");
    let mut command = node_with("playwright-core");
    command.arg(folder().join(script));
    command.args([part, &port.to_string()]);
    command
}

#[test]
#[should_panic(
    expected = "the client quell-no-such-client is missing: install it with `cargo xtask install`"
)]
fn a_client_that_is_missing_is_a_failure() {
    require("quell-no-such-client");
}
