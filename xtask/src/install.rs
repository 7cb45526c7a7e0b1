//! Programs that the tests need besides cargo: real clients, because a server is tested with the programs
//! that people use with it.
//!
//! Nothing is fetched that is already there, so a second run takes no time. If something cannot be
//! installed, the error says what to install by hand.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::programs;
use crate::{repository, terminal};

/// A Debian package, and how to tell that it is already installed.
struct SystemPackage {
    name: &'static str,
    is_there: fn() -> bool,
}

const SYSTEM_PACKAGES: [SystemPackage; 22] = [
    SystemPackage {
        name: "openssl",
        is_there: || programs::is_on_path("openssl"),
    },
    SystemPackage {
        name: "curl",
        is_there: || programs::is_on_path("curl"),
    },
    SystemPackage {
        name: "redis-tools",
        is_there: || programs::is_on_path("redis-cli"),
    },
    SystemPackage {
        name: "redis-server",
        is_there: || programs::is_on_path("redis-server"),
    },
    // The feature `etcd` of quell-coordinator: its build, and its tests.
    SystemPackage {
        name: "protobuf-compiler",
        is_there: || programs::is_on_path("protoc"),
    },
    SystemPackage {
        name: "libprotobuf-dev",
        is_there: || Path::new("/usr/include/google/protobuf/descriptor.proto").is_file(),
    },
    SystemPackage {
        name: "etcd-server",
        is_there: || programs::is_on_path("etcd"),
    },
    SystemPackage {
        name: "etcd-client",
        is_there: || programs::is_on_path("etcdctl"),
    },
    SystemPackage {
        name: "libfaketime",
        is_there: || has_library("faketime/libfaketimeMT.so.1"),
    },
    SystemPackage {
        name: "apache2-utils",
        is_there: || programs::is_on_path("ab"),
    },
    SystemPackage {
        name: "nginx",
        is_there: || programs::is_on_path("nginx") || Path::new("/usr/sbin/nginx").is_file(),
    },
    SystemPackage {
        name: "libnginx-mod-http-lua",
        is_there: || Path::new("/usr/lib/nginx/modules/ngx_http_lua_module.so").is_file(),
    },
    SystemPackage {
        name: "caddy",
        is_there: || programs::is_on_path("caddy"),
    },
    SystemPackage {
        name: "prometheus",
        is_there: || programs::is_on_path("promtool"),
    },
    // The console is tested in a browser.
    SystemPackage {
        name: "chromium",
        is_there: || programs::is_on_path("chromium"),
    },
    SystemPackage {
        name: "fakeroot",
        is_there: || programs::is_on_path("fakeroot"),
    },
    SystemPackage {
        name: "logrotate",
        is_there: || {
            programs::is_on_path("logrotate") || Path::new("/usr/sbin/logrotate").is_file()
        },
    },
    SystemPackage {
        name: "man-db",
        is_there: || programs::is_on_path("man"),
    },
    SystemPackage {
        name: "systemd",
        is_there: || programs::is_on_path("systemd-analyze"),
    },
    SystemPackage {
        name: "python3-venv",
        is_there: python_makes_venvs,
    },
    SystemPackage {
        name: "nodejs",
        is_there: || programs::is_on_path("node"),
    },
    SystemPackage {
        name: "npm",
        is_there: || programs::is_on_path("npm"),
    },
];

/// Installs every missing client that the tests start.
///
/// # Errors
///
/// When a package cannot be installed; the error names it.
pub(crate) fn run() -> Result<()> {
    toolchain()?;
    system_packages()?;
    let clients = repository::root()?.join("tests/clients");
    python_client(&clients).context("the Python client cannot be installed")?;
    node_client(&clients).context("the Node client cannot be installed")
}

/// rustup leaves these out of its minimal profile.
fn toolchain() -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let mut command = programs::cargo(Path::new("."));
        if !programs::succeeds(command.args([subcommand, "--version"])) {
            bail!("`cargo {subcommand}` is missing; run `rustup component add {component}`");
        }
    }
    Ok(())
}

fn system_packages() -> Result<()> {
    let missing: Vec<&str> = SYSTEM_PACKAGES
        .iter()
        .filter(|package| !(package.is_there)())
        .map(|package| package.name)
        .collect();
    if missing.is_empty() {
        terminal::line("programs: all there");
        return Ok(());
    }
    terminal::line(&format!("programs: installing {}", missing.join(", ")));
    let by_hand = format!(
        "please install these Debian packages by hand: {}",
        missing.join(" ")
    );
    if !programs::is_on_path("apt-get") {
        bail!("there is no apt-get here; {by_hand}");
    }
    let as_root = as_root().with_context(|| by_hand.clone())?;
    apt_get(&as_root, &["update", "-qq"]).with_context(|| by_hand.clone())?;
    let mut arguments = vec!["install", "-qq", "--yes", "--no-install-recommends"];
    arguments.extend(&missing);
    apt_get(&as_root, &arguments).context(by_hand)?;
    for package in &SYSTEM_PACKAGES {
        if !(package.is_there)() {
            bail!("{} is installed, but its files are not found", package.name);
        }
    }
    Ok(())
}

/// The prefix of a command that needs root: nothing, or `sudo`.
fn as_root() -> Result<Vec<&'static str>> {
    let id = Command::new("id")
        .arg("-u")
        .output()
        .context("cannot start: id -u")?;
    if id.stdout.trim_ascii() == b"0" {
        return Ok(Vec::new());
    }
    if programs::succeeds(Command::new("sudo").args(["-n", "true"])) {
        return Ok(vec!["sudo", "-n"]);
    }
    bail!("installing programs needs root, or sudo without a password")
}

/// `RUNLEVEL=1` keeps a package from starting a server of its own. If another apt-get is running,
/// this waits for it, two minutes at most.
fn apt_get(as_root: &[&str], arguments: &[&str]) -> Result<()> {
    let settings = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"];
    let program = ["apt-get", "-o", "DPkg::Lock::Timeout=120"];
    let words: Vec<&str> = [as_root, &settings, &program, arguments].concat();
    programs::run(Command::new(words[0]).args(&words[1..]))
}

/// Returns true if a file is below `/usr/lib/<architecture>`.
fn has_library(file: &str) -> bool {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders
        .map(|folder| folder.path().join(file))
        .any(|path| path.is_file())
}

fn python_makes_venvs() -> bool {
    programs::succeeds(Command::new("python3").args(["-c", "import ensurepip, venv"]))
}

/// redis-py, in a virtual environment beside its list of requirements.
fn python_client(clients: &Path) -> Result<()> {
    let venv = clients.join(".venv");
    let requirements = clients.join("requirements.txt");
    let stamp = Stamp::new(&venv, &requirements)?;
    if stamp.is_current() {
        terminal::line("python client: there");
        return Ok(());
    }
    terminal::line("python client: installing");
    programs::run(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    )?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input"]);
    programs::run(pip.arg("--requirement").arg(&requirements))?;
    stamp.set()
}

/// ioredis, exactly as its lock file says.
fn node_client(clients: &Path) -> Result<()> {
    let stamp = Stamp::new(
        &clients.join("node_modules"),
        &clients.join("package-lock.json"),
    )?;
    if stamp.is_current() {
        terminal::line("node client: there");
        return Ok(());
    }
    terminal::line("node client: installing");
    let mut npm = Command::new("npm");
    npm.args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]);
    programs::run(npm.current_dir(clients))?;
    stamp.set()
}

/// A copy of the list of what was installed, kept in the same folder. It is written last, so that
/// an incomplete installation is repeated.
struct Stamp {
    path: std::path::PathBuf,
    wanted: Vec<u8>,
}

impl Stamp {
    fn new(installed: &Path, list: &Path) -> Result<Self> {
        let wanted = fs::read(list).with_context(|| format!("cannot read {}", list.display()))?;
        let name = list.file_name().map(OsString::from).unwrap_or_default();
        let path = installed.join(".installed").with_extension(name);
        Ok(Self { path, wanted })
    }

    fn is_current(&self) -> bool {
        fs::read(&self.path).is_ok_and(|installed| installed == self.wanted)
    }

    fn set(&self) -> Result<()> {
        let shown = self.path.display();
        fs::write(&self.path, &self.wanted).with_context(|| format!("cannot write {shown}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_holds_until_its_list_changes() {
        let folder = repository::root().unwrap().join("target/xtask-stamp");
        fs::create_dir_all(&folder).unwrap();
        let list = folder.join("list.txt");
        fs::write(&list, "one").unwrap();
        let stamp = Stamp::new(&folder, &list).unwrap();
        drop(fs::remove_file(&stamp.path));
        assert!(!stamp.is_current());
        stamp.set().unwrap();
        assert!(Stamp::new(&folder, &list).unwrap().is_current());
        fs::write(&list, "two").unwrap();
        assert!(!Stamp::new(&folder, &list).unwrap().is_current());
    }

    #[test]
    fn the_lists_of_the_clients_name_one_version_each() {
        let clients = repository::root().unwrap().join("tests/clients");
        let requirements = fs::read_to_string(clients.join("requirements.txt")).unwrap();
        assert!(requirements.lines().any(|line| line.starts_with("redis==")));
        let lock = fs::read_to_string(clients.join("package-lock.json")).unwrap();
        assert!(lock.contains("\"node_modules/ioredis\""));
        assert!(
            !lock.contains("resolved"),
            "a lock without hosts suits every registry"
        );
    }
}
