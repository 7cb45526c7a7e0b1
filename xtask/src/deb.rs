//! Deb: the Debian package with the command, the service, manual pages and completions.
//!
//! The files are those of `deploy/`; `dpkg-deb` makes an archive of them. The binary says by its symbols
//! which C library it needs.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::programs::{self, cargo};
use crate::{repository, terminal, vendor};

mod glibc;
mod notices;

/// Files of the repository, where they are installed, and their modes. Those in `/etc` belong to the
/// administrator once they are installed.
const FILES: [(&str, &str, u32); 9] = [
    (
        "deploy/quell.service",
        "usr/lib/systemd/system/quell.service",
        0o644,
    ),
    ("deploy/quell.toml", "etc/quell/quell.toml", 0o644),
    (
        "deploy/example.yaml",
        "etc/quell/rules.d/example.yaml",
        0o644,
    ),
    ("deploy/quell.default", "etc/default/quell", 0o600),
    ("deploy/logrotate", "etc/logrotate.d/quell", 0o644),
    (
        "deploy/prometheus/alerts.yml",
        "usr/share/doc/quell/prometheus/alerts.yml",
        0o644,
    ),
    (
        "deploy/grafana/quell.json",
        "usr/share/doc/quell/grafana/quell.json",
        0o644,
    ),
    (
        "deploy/quell-coordinator.service",
        "usr/share/doc/quell/examples/quell-coordinator.service",
        0o644,
    ),
    ("CHANGELOG.md", "usr/share/doc/quell/CHANGELOG.md", 0o644),
];

/// Completions: the shell, and where Debian has those of packages.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/quell"),
    ("zsh", "usr/share/zsh/vendor-completions/_quell"),
    ("fish", "usr/share/fish/vendor_completions.d/quell.fish"),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Version, architecture and place of the package.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    /// Without one, an optimised build.
    binary: Option<PathBuf>,
    /// Distinguishes packages of one version.
    revision: String,
    out: PathBuf,
    compression: String,
}

impl Settings {
    fn parse(words: &[&str]) -> Result<Self> {
        let mut settings = Self {
            binary: None,
            revision: "1".to_owned(),
            out: PathBuf::from("target/debian"),
            compression: "xz".to_owned(),
        };
        let (pairs, rest) = words.as_chunks::<2>();
        for [flag, value] in pairs {
            match *flag {
                "--binary" => settings.binary = Some(PathBuf::from(value)),
                "--revision" => settings.revision = (*value).to_owned(),
                "--out" => settings.out = PathBuf::from(value),
                "--compression" => settings.compression = (*value).to_owned(),
                _ => {
                    bail!("cannot read {flag}: write --binary, --revision, --out or --compression")
                }
            }
        }
        ensure!(rest.is_empty(), "{} needs a value", rest.concat());
        let is_revision = |c: char| c.is_ascii_alphanumeric() || "+.~".contains(c);
        ensure!(
            !settings.revision.is_empty() && settings.revision.chars().all(is_revision),
            "a revision has letters, digits and + . ~"
        );
        Ok(settings)
    }
}

/// Makes `quell_VERSION-REVISION_ARCH.deb`.
///
/// # Errors
///
/// When a file is missing, the binary does not run here, or `dpkg-deb` fails.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let settings = Settings::parse(words)?;
    let root = repository::root()?;
    let binary = match &settings.binary {
        Some(binary) => binary.clone(),
        None => built(&root)?,
    };
    fs::create_dir_all(&settings.out)?;
    let tree = settings.out.join(format!("tree-{}", std::process::id()));
    fs::create_dir(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let made = package(&settings, &root, &binary, &tree);
    fs::remove_dir_all(&tree)?;
    terminal::line(&made?.display().to_string());
    Ok(())
}

fn built(root: &Path) -> Result<PathBuf> {
    let mut build = cargo(root);
    build.args([
        "build",
        "--profile",
        "dist",
        "--locked",
        "--package",
        "quell-cli",
    ]);
    // Who installs a package has no compiler to turn them on with.
    programs::run(build.args(["--features", "etcd,otel"]))?;
    Ok(root.join("target/dist/quell"))
}

/// Lays out the package in `tree`, and packs it.
fn package(settings: &Settings, root: &Path, binary: &Path, tree: &Path) -> Result<PathBuf> {
    let installed = tree.join("usr/bin/quell");
    create_parent(&installed)?;
    // Without names for debuggers: most of the size. `strip` comes with the linker.
    let mut strip = Command::new("strip");
    programs::run(
        strip
            .arg("--strip-all")
            .arg("-o")
            .arg(&installed)
            .arg(binary),
    )?;
    set_mode(&installed, 0o755)?;
    for (from, to, mode) in FILES {
        let text = fs::read(root.join(from)).with_context(|| format!("cannot read {from}"))?;
        write(&tree.join(to), &text, mode)?;
    }
    for (shell, to) in COMPLETIONS {
        let script = output(Command::new(&installed).args(["completions", shell]))?;
        write(&tree.join(to), &script, 0o644)?;
    }
    manual_pages(&installed, &tree.join("usr/share/man"))?;
    let documents = tree.join("usr/share/doc/quell");
    let crates = notices::of_binary(root)?;
    write(
        &documents.join("copyright"),
        copyright(root, &crates)?.as_bytes(),
        0o644,
    )?;
    let third_party = documents.join("third-party-licenses.txt");
    let texts = crates.texts()? + &vendor::notices(root)?;
    write(&third_party, texts.as_bytes(), 0o644)?;
    gzip(&[third_party, documents.join("CHANGELOG.md")])?;
    for folder in folders(tree)? {
        set_mode(&folder, 0o755)?;
    }
    let version = version(&installed)?;
    let architecture = text(&output(Command::new("dpkg").arg("--print-architecture"))?);
    let name = format!("quell_{version}-{}_{architecture}.deb", settings.revision);
    let control = Control {
        version: format!("{version}-{}", settings.revision),
        architecture,
        glibc: glibc::needed(&fs::read(&installed)?)?,
        kilobytes: size(tree)?.div_ceil(1024),
    };
    control.write(root, tree)?;
    let deb = settings.out.join(name);
    let mut pack = Command::new("dpkg-deb");
    pack.arg(format!("-Z{}", settings.compression));
    pack.args(["--root-owner-group", "--build"])
        .arg(tree)
        .arg(&deb);
    output(&mut pack)?;
    Ok(deb)
}

/// Fields of the control file.
struct Control {
    version: String,
    architecture: String,
    glibc: String,
    kilobytes: u64,
}

impl Control {
    fn text(&self) -> String {
        let Self {
            version,
            architecture,
            glibc,
            kilobytes,
        } = self;
        format!(
            "Package: quell\nVersion: {version}\nArchitecture: {architecture}\n\
             Maintainer: The Quell authors <root@localhost>\n\
             Installed-Size: {kilobytes}\nDepends: libc6 (>= {glibc}), libgcc-s1\n\
             Suggests: redis-server | valkey-server\nSection: net\nPriority: optional\n\
             Description: rate limiter whose limits and waits are exact\n \
             A server that speaks HTTP and the Redis protocol, with rules in files or in a\n \
             store, and the command to test, change and watch them. Many servers share\n \
             limits through Redis or Valkey.\n"
        )
    }

    fn write(&self, root: &Path, tree: &Path) -> Result<()> {
        let control = tree.join("DEBIAN");
        write(&control.join("control"), self.text().as_bytes(), 0o644)?;
        let of_administrator = FILES.iter().filter(|(_, to, _)| to.starts_with("etc/"));
        let conffiles: String = of_administrator
            .map(|(_, to, _)| format!("/{to}\n"))
            .collect();
        write(&control.join("conffiles"), conffiles.as_bytes(), 0o644)?;
        for script in SCRIPTS {
            let text = fs::read(root.join("deploy/debian").join(script))?;
            write(&control.join(script), &text, 0o755)?;
        }
        set_mode(&control, 0o755)
    }
}

fn manual_pages(binary: &Path, to: &Path) -> Result<()> {
    output(Command::new(binary).arg("man").arg(to))?;
    for section in ["man1", "man7"] {
        let entries = fs::read_dir(to.join(section))?.collect::<Result<Vec<_>, _>>()?;
        let pages: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        for page in &pages {
            set_mode(page, 0o644)?;
        }
        gzip(&pages)?;
    }
    Ok(())
}

/// In Debian's format; the last paragraph lists what is in the binary.
fn copyright(root: &Path, crates: &notices::Crates) -> Result<String> {
    let mit = fs::read_to_string(root.join("LICENSE-MIT"))?;
    let indented = |text: &str| {
        let lines = text.trim().lines().map(|line| match line.trim_end() {
            "" => " .\n".to_owned(),
            line => format!(" {line}\n"),
        });
        lines.collect::<String>()
    };
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: quell\nSource: a checkout of Quell, of this version\n\
         Comment:\n The binary contains these crates of others. Their notices are in\n \
         third-party-licenses.txt.gz beside this file.\n .\n{}\n\
         Files: *\nCopyright: The Quell authors\nLicense: MIT or Apache-2.0\n\n\
         License: MIT\n{}\n\
         License: Apache-2.0\n On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n",
        indented(&crates.list()),
        indented(&mit)
    ))
}

fn version(binary: &Path) -> Result<String> {
    let said = text(&output(Command::new(binary).arg("--version"))?);
    let version = said.strip_prefix("quell ");
    Ok(version
        .with_context(|| format!("no version in {said:?}"))?
        .to_owned())
}

/// The output of a command that has to succeed.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = programs::shown(command);
    let done = command
        .output()
        .with_context(|| format!("cannot start: {shown}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "failed: {shown}\n{said}");
    Ok(done.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn create_parent(file: &Path) -> Result<()> {
    let parent = file.parent().context("a file without a folder")?;
    Ok(fs::create_dir_all(parent)?)
}

fn write(file: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    create_parent(file)?;
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(file);
    opened
        .with_context(|| format!("cannot write {}", file.display()))?
        .write_all(bytes)?;
    set_mode(file, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Without names and times, so that the same files make the same package.
fn gzip(files: &[PathBuf]) -> Result<()> {
    output(
        Command::new("gzip")
            .args(["-9", "--no-name", "--"])
            .args(files),
    )
    .map(drop)
}

/// All folders below this one, and itself.
fn folders(tree: &Path) -> Result<Vec<PathBuf>> {
    let mut all = vec![tree.to_owned()];
    for entry in fs::read_dir(tree)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(folders(&path)?);
        }
    }
    Ok(all)
}

/// Bytes of all files below.
fn size(tree: &Path) -> Result<u64> {
    let mut bytes = 0;
    for folder in folders(tree)? {
        for entry in fs::read_dir(folder)? {
            let metadata = entry?.metadata()?;
            bytes += if metadata.is_file() {
                metadata.len()
            } else {
                0
            };
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let settings = Settings::parse(&["--revision", "2~test", "--out", "/x"]).unwrap();
        assert_eq!(
            (&*settings.revision, &*settings.out),
            ("2~test", Path::new("/x"))
        );
        for (words, told) in [
            (&["--revision"][..], "--revision needs a value"),
            (&["--revision", "a-b"], "letters, digits"),
            (&["--fast", "x"], "cannot read --fast"),
        ] {
            let error = Settings::parse(words).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn every_file_of_the_package_is_there() {
        let root = repository::root().unwrap();
        for (file, ..) in FILES {
            assert!(root.join(file).is_file(), "{file}");
        }
        for script in SCRIPTS {
            let text = fs::read_to_string(root.join("deploy/debian").join(script)).unwrap();
            assert!(
                text.starts_with("#!/bin/sh\n") && text.contains("\nset -e\n"),
                "{script}"
            );
        }
    }
}
